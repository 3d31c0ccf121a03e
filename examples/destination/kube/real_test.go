package kube

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/destination/internal/policytest"
	"github.com/gotower/gotower/internal/kubetest"
)

// builtin has the API resources of the kinds that the tests create, in addition to
// [resources].
var builtin = map[string]schema.GroupVersionResource{
	"CustomResourceDefinition": {Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	"ClusterRole":              {Group: rbacv1.GroupName, Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding":       {Group: rbacv1.GroupName, Version: "v1", Resource: "clusterrolebindings"},
	"Role":                     {Group: rbacv1.GroupName, Version: "v1", Resource: "roles"},
	"RoleBinding":              {Group: rbacv1.GroupName, Version: "v1", Resource: "rolebindings"},
	"Namespace":                {Version: "v1", Resource: "namespaces"},
	"ServiceAccount":           {Version: "v1", Resource: "serviceaccounts"},
	"Secret":                   {Version: "v1", Resource: "secrets"},
	"Service":                  {Version: "v1", Resource: "services"},
	"Pod":                      {Version: "v1", Resource: "pods"},
	"EndpointSlice":            {Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	"Node":                     {Version: "v1", Resource: "nodes"},
}

// server is a kube-apiserver with the definitions, the rights and the service account of the
// controller.
type apiServer struct {
	*kubetest.Server

	client dynamic.Interface
	token  string // of the service account
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{Server: kubetest.New(t)}
	cfg := s.Config(kubetest.Admin)
	client, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	s.client, err = dynamic.NewForConfigAndClient(cfg, client)
	require.NoError(t, err)
	s.apply(t, `
apiVersion: v1
kind: Namespace
metadata: {name: linkerd}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: linkerd-destination, namespace: linkerd}
`)
	s.apply(t, RBAC)
	token, err := s.Client(t, kubetest.Admin).CoreV1().ServiceAccounts("linkerd").CreateToken(
		t.Context(), "linkerd-destination", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.token = token.Status.Token
	return s
}

// define creates the definitions of the kinds that the controller reads.
func (s *apiServer) define(t *testing.T) {
	t.Helper()
	s.apply(t, CRDs())
	for _, r := range resources { // the API server serves a new definition after a moment
		eventually(t, "the definition of "+r.Resource, func() bool {
			_, err := s.client.Resource(r).List(t.Context(), metav1.ListOptions{})
			return err == nil
		})
	}
}

func (s *apiServer) resource(t *testing.T, kind, namespace string) dynamic.ResourceInterface {
	t.Helper()
	r, ok := resources[kind]
	if !ok {
		r, ok = builtin[kind]
	}
	require.True(t, ok, kind)
	return s.client.Resource(r).Namespace(namespace)
}

// apply creates or changes the objects in text, which is YAML. It also sets the status of a
// Pod.
func (s *apiServer) apply(t *testing.T, text string) {
	t.Helper()
	for _, u := range documents(t, text) {
		s.applyObject(t, u)
	}
}

func (s *apiServer) applyObject(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	to, o := s.resource(t, kindOf(u), u.GetNamespace()), metav1.ApplyOptions{FieldManager: "test", Force: true}
	_, err := to.Apply(t.Context(), u.GetName(), u, o)
	require.NoError(t, err, u)
	if _, found := u.Object["status"]; found {
		_, err := to.ApplyStatus(t.Context(), u.GetName(), u, o)
		require.NoError(t, err, u)
	}
}

// removeObject deletes u. It also completes the deletion of a Namespace, for which a cluster has a
// controller.
func (s *apiServer) removeObject(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	options := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	require.NoError(t, s.resource(t, kindOf(u), u.GetNamespace()).Delete(t.Context(), u.GetName(), options))
	if kindOf(u) == "Namespace" {
		final := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: u.GetName()}}
		_, err := s.Client(t, kubetest.Admin).CoreV1().Namespaces().Finalize(t.Context(), final, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
}

func (s *apiServer) remove(t *testing.T, kind, name string) {
	t.Helper()
	options := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	require.NoError(t, s.resource(t, kind, "shop").Delete(t.Context(), name, options))
}

// condition returns the status and reason of a condition of a route, as written for the
// controller: "True Accepted".
func (s *apiServer) condition(t *testing.T, kind, name, condition string) string {
	t.Helper()
	u, err := s.resource(t, kind, "shop").Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	require.NoError(t, err)
	parents, _, err := unstructured.NestedSlice(u.Object, "status", "parents")
	require.NoError(t, err)
	for _, p := range parents {
		parent, _ := p.(map[string]any)
		conditions, _ := parent["conditions"].([]any)
		for _, c := range conditions {
			if c, _ := c.(map[string]any); c["type"] == condition && parent["controllerName"] == DefaultSettings().ControllerName {
				return fmt.Sprint(c["status"], " ", c["reason"])
			}
		}
	}
	return ""
}

// eventually waits until done returns true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, time.Minute, 20*time.Millisecond, what)
}

// requests records the requests of a client, by verb and resource.
type requests struct {
	next http.RoundTripper

	mu        sync.Mutex
	seen      map[string]bool // "verb group/resource"
	forbidden []string
}

func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	group := ""
	if parts[0] == "apis" && len(parts) > 1 {
		group, parts = parts[1], parts[1:]
	}
	if len(parts) < 3 { // it asks for kinds, which all users may
		return r.next.RoundTrip(req)
	}
	parts = parts[2:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	verb := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodGet: "get"}[req.Method]
	switch {
	case req.URL.Query().Get("watch") == "true" || req.URL.Query().Get("watch") == "1":
		verb = "watch"
	case verb == "get" && len(parts) == 1:
		verb = "list"
	}
	resource := parts[0]
	if len(parts) == 3 {
		resource += "/" + parts[2]
	}
	request := verb + " " + group + "/" + resource
	r.mu.Lock()
	r.seen[request] = true // before the response, because the test may see the effect first
	r.mu.Unlock()
	rsp, err := r.next.RoundTrip(req)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && rsp.StatusCode == http.StatusForbidden {
		r.forbidden = append(r.forbidden, request)
	}
	return rsp, err
}

func (r *requests) has(request string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[request]
}

// process is a controller with its client.
type process struct {
	*requests

	watcher *Watcher
	conn    *grpc.ClientConn
	stop    func()
}

// start starts a controller with the rights of the service account. Its clients are closed
// at the end of the test.
func (s *apiServer) start(t *testing.T, identity string, change ...func(*Settings)) *process {
	t.Helper()
	p := &process{requests: &requests{seen: make(map[string]bool)}}
	cfg := s.Config(s.token)
	cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		p.next = next
		return p
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil)).With("controller", identity)
	c := controller.New(log)
	settings := DefaultSettings()
	for _, f := range change {
		f(&settings)
	}
	w, err := New(cfg, settings, c, log)
	require.NoError(t, err)
	p.watcher = w
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		assert.NoError(t, w.Run(ctx, Lease{
			Namespace: "linkerd", Name: "linkerd-destination", Identity: identity,
			Duration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond,
		}, func() {}))
	})
	all.Go(func() { assert.NoError(t, c.Serve(ctx, lis)) })
	p.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(p.stop)
	opts := append(policytest.DialOptions(t), grpc.WithTransportCredentials(insecure.NewCredentials()))
	p.conn, err = grpc.NewClient("passthrough:///"+lis.Addr().String(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.conn.Close() })
	return p
}

// latest has the last message of a stream, and the error that ended it.
type latest[M any] struct {
	mu    sync.Mutex
	msg   M
	count int
	err   error
}

func (l *latest[M]) get() (M, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.msg, l.err
}

// follow receives the messages of a stream until it ends.
func follow[M any](t *testing.T, open func(context.Context) (interface{ Recv() (M, error) }, error)) *latest[M] {
	t.Helper()
	stream, err := open(t.Context())
	require.NoError(t, err)
	l := new(latest[M])
	go func() {
		for {
			msg, err := stream.Recv()
			l.mu.Lock()
			if err == nil {
				l.msg = msg
				l.count++
			}
			l.err = err
			l.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return l
}

func (p *process) profile(t *testing.T, path string) *latest[*pb.DestinationProfile] {
	t.Helper()
	return follow(t, func(ctx context.Context) (interface {
		Recv() (*pb.DestinationProfile, error)
	}, error) {
		return pb.NewDestinationClient(p.conn).GetProfile(ctx, &pb.GetDestination{Path: path})
	})
}

func (p *process) policy(t *testing.T, authority string) *latest[*outbound.OutboundPolicy] {
	t.Helper()
	return p.policyFor(t, &outbound.TrafficSpec{Target: &outbound.TrafficSpec_Authority{Authority: authority}})
}

func (p *process) policyFor(t *testing.T, spec *outbound.TrafficSpec) *latest[*outbound.OutboundPolicy] {
	t.Helper()
	return follow(t, func(ctx context.Context) (interface {
		Recv() (*outbound.OutboundPolicy, error)
	}, error) {
		return outbound.NewOutboundPoliciesClient(p.conn).Watch(ctx, spec)
	})
}

// outsideTarget is an address outside the cluster.
var outsideTarget = &outbound.TrafficSpec_Addr{
	Addr: &apinet.TcpAddress{Ip: &apinet.IPAddress{Ip: &apinet.IPAddress_Ipv4{Ipv4: 192<<24 | 2<<8 | 1}}, Port: 443},
}

func (p *process) port(t *testing.T, workload string, port uint32) *latest[*inbound.Server] {
	t.Helper()
	return follow(t, func(ctx context.Context) (interface {
		Recv() (*inbound.Server, error)
	}, error) {
		return inbound.NewInboundServerPoliciesClient(p.conn).WatchPort(ctx, &inbound.PortSpec{Workload: workload, Port: port})
	})
}

// endpoints has the state of a Get stream.
type endpoints struct {
	mu     sync.Mutex
	exists string // "?", "false" or "true"
	set    map[string]*pb.WeightedAddr
	err    error
}

func addrText(a *apinet.TcpAddress) string {
	v4 := a.GetIp().GetIpv4()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(v4 >> 24), byte(v4 >> 16), byte(v4 >> 8), byte(v4)}), uint16(a.GetPort())).String()
}

func (e *endpoints) apply(u *pb.Update) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range u.GetAdd().GetAddrs() {
		e.set[addrText(a.GetAddr())] = a
		e.exists = "true"
	}
	for _, a := range u.GetRemove().GetAddrs() {
		delete(e.set, addrText(a))
	}
	if n := u.GetNoEndpoints(); n != nil {
		e.exists = fmt.Sprint(n.GetExists())
		clear(e.set)
	}
}

// String returns whether the name exists, and the endpoints with their identities.
func (e *endpoints) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := e.exists
	for _, addr := range slices.Sorted(maps.Keys(e.set)) {
		text += " " + addr
		if id := e.set[addr].GetTlsIdentity().GetDnsLikeIdentity().GetName(); id != "" {
			text += "=" + id
		}
		if e.set[addr].GetProtocolHint().GetOpaque() != nil {
			text += fmt.Sprintf(" opaque:%d", e.set[addr].GetProtocolHint().GetOpaqueTransport().GetInboundPort())
		}
	}
	return text
}

func (p *process) endpoints(t *testing.T, path string) *endpoints {
	t.Helper()
	return p.endpointsFor(t, "", path)
}

// endpointsFor returns the endpoints for a client with the given context token.
func (p *process) endpointsFor(t *testing.T, token, path string) *endpoints {
	t.Helper()
	stream, err := pb.NewDestinationClient(p.conn).Get(t.Context(), &pb.GetDestination{Path: path, ContextToken: token})
	require.NoError(t, err)
	e := &endpoints{exists: "?", set: make(map[string]*pb.WeightedAddr)}
	go func() {
		for {
			u, err := stream.Recv()
			if err != nil {
				e.mu.Lock()
				e.err = err
				e.mu.Unlock()
				return
			}
			e.apply(u)
		}
	}()
	return e
}

const webService = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80, targetPort: 8080}]}
`

const webSlice = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: web-5d-1, namespace: shop}}]
`

const webPod = `
apiVersion: v1
kind: Pod
metadata:
  name: web-5d-1
  namespace: shop
  labels: {app: web, pod-template-hash: 5d, linkerd.io/control-plane-ns: linkerd}
  annotations: {config.linkerd.io/opaque-ports: "PORTS"}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-5d, uid: "1", controller: true}]
spec:
  serviceAccountName: web
  containers:
  - {name: web, image: web, ports: [{name: http, containerPort: 8080}]}
  - {name: linkerd-proxy, image: proxy}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}], podIP: 10.0.0.1}
`

const splitRoute = `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: split, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: web}]
  rules: [{backendRefs: [{name: web, port: 80, weight: 9}, {name: canary, port: 80}]}]
`

// otherKinds verifies objects of the kinds that only linkerd has, of TLSRoutes and TCPRoutes, and of
// what depends on the client, with a controller.
func (s *apiServer) otherKinds(t *testing.T, p *process) {
	t.Helper()
	named := func(workload string) *latest[*outbound.OutboundPolicy] {
		return p.policyFor(t, &outbound.TrafficSpec{SourceWorkload: workload, Target: &outbound.TrafficSpec_Authority{Authority: "next.shop.svc.cluster.local:80"}})
	}
	becomes := func(l *latest[*outbound.OutboundPolicy], want string) {
		t.Helper()
		eventually(t, want, func() bool { m, _ := l.get(); return m != nil && routesIn(t, m) == want })
	}
	accepts := func(kind, name string) {
		t.Helper()
		eventually(t, "status of "+kind, func() bool { return s.condition(t, kind, name, "Accepted") == "True Accepted" })
	}
	s.apply(t, `
apiVersion: v1
kind: Service
metadata: {name: next, namespace: shop}
spec: {clusterIP: 10.96.0.20, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: near}
`)
	near, far := named(`{"ns":"near","pod":"a"}`), named("far:b")
	becomes(near, "Detect_")
	becomes(far, "Detect_")
	route := func(version, kind, namespace string) string {
		return strings.ReplaceAll(routeTo(version, kind, namespace, "r"), "name: web,", "name: next,")
	}
	for _, kind := range []struct{ version, kind, protocol string }{
		{gatewayAlpha, "TLSRoute", "Tls_"}, {gatewayAlpha, "TCPRoute", "Opaque_"}, {linkerdBeta, linkerdHTTPRoute, "Detect_"},
	} {
		plain := strings.TrimSuffix(kind.kind, "."+policyGroup)
		want := kind.protocol + " " + strings.Split(kind.version, "/")[0] + "/" + plain
		s.apply(t, strings.TrimPrefix(route(kind.version, plain, "shop"), "---\n"))
		becomes(near, want+"/shop/r")
		becomes(far, want+"/shop/r")
		accepts(kind.kind, "r")
		s.remove(t, kind.kind, "r")
		becomes(near, "Detect_")
	}
	s.apply(t, strings.TrimPrefix(route(gatewayV1, "HTTPRoute", "near"), "---\n"))
	becomes(near, "Detect_ gateway.networking.k8s.io/HTTPRoute/near/r")
	becomes(far, "Detect_")

	outside := p.policyFor(t, &outbound.TrafficSpec{SourceWorkload: `{"ns":"near"}`, Target: outsideTarget})
	isDenied := func(want string) {
		t.Helper()
		eventually(t, want, func() bool {
			m, _ := outside.get()
			routes := m.GetProtocol().GetDetect().GetHttp1().GetRoutes()
			return len(routes) > 0 && routes[len(routes)-1].GetMetadata().GetDefault() == want
		})
	}
	isDenied("egress-fallback")
	s.apply(t, strings.TrimPrefix(egressTo("near", "out", "Deny", ""), "---\n"))
	isDenied("http-egress-deny")
	eventually(t, "the status of an EgressNetwork", func() bool {
		u, err := s.resource(t, "EgressNetwork", "near").Get(t.Context(), "out", metav1.GetOptions{})
		require.NoError(t, err)
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		return len(conditions) == 1
	})
	require.NoError(t, s.resource(t, "EgressNetwork", "near").Delete(t.Context(), "out", metav1.DeleteOptions{}))
	isDenied("egress-fallback")

	next := p.endpoints(t, "next.shop.svc.cluster.local:80")
	const slice = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: next-1, namespace: shop, labels: {kubernetes.io/service-name: next}}
addressType: IPv4
ports: [{name: http, port: 80, protocol: TCP}]
endpoints:
- {addresses: [10.0.0.7], zone: a, targetRef: {kind: ExternalWorkload, name: vm, namespace: shop}, hints: {forZones: [{name: a}]}}
- {addresses: [10.0.0.8], zone: b, hints: {forZones: [{name: b}]}}
`
	s.apply(t, slice)
	eventually(t, "an external endpoint", func() bool { return next.String() == "true 10.0.0.7:80 10.0.0.8:80" })
	s.apply(t, `
apiVersion: workload.linkerd.io/v1beta1
kind: ExternalWorkload
metadata: {name: vm, namespace: shop}
spec: {meshTLS: {identity: vm.test, serverName: vm.test}, workloadIPs: [{ip: 10.0.0.7}]}
`)
	eventually(t, "its identity", func() bool { return next.String() == "true 10.0.0.7:80=vm.test 10.0.0.8:80" })
	s.apply(t, `
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: b}}
`)
	stream, err := pb.NewDestinationClient(p.conn).Get(t.Context(), &pb.GetDestination{Path: "next.shop.svc.cluster.local:80", ContextToken: `{"ns":"near","nodeName":"n1"}`})
	require.NoError(t, err)
	hinted := &endpoints{exists: "?", set: make(map[string]*pb.WeightedAddr)}
	for { // the Node may arrive after the first look-up
		u, err := stream.Recv()
		require.NoError(t, err)
		if hinted.apply(u); hinted.String() == "true 10.0.0.8:80" {
			break
		}
	}

	profile := p.profile(t, "next.shop.svc.cluster.local:80")
	opaque := func(want bool) {
		t.Helper()
		eventually(t, "the annotation of a Namespace", func() bool { m, _ := profile.get(); return m != nil && m.GetOpaqueProtocol() == want })
	}
	opaque(false)
	s.apply(t, `
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {config.linkerd.io/opaque-ports: "80"}}
`)
	opaque(true)
	s.apply(t, `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
`)
	opaque(false)
}

// A change of an object of each kind changes what a controller with the rights of RBAC
// serves. The controller uses all of these rights. The leader writes the status of routes,
// and another controller takes over. While the API server is not available, the last state
// is served.
func TestRealAPIServer(t *testing.T) {
	s := newAPIServer(t)
	s.define(t)
	a := s.start(t, "a")
	web := a.endpoints(t, "web.shop.svc.cluster.local:80")
	profile, byIP := a.profile(t, "web.shop.svc.cluster.local:80"), a.profile(t, "10.96.0.10:80")
	workload := a.port(t, `{"ns":"shop","pod":"web-5d-1"}`, 8080)
	serves := func(want string) {
		t.Helper()
		eventually(t, want, func() bool { return web.String() == want })
	}
	accepts := func(kind, name, condition, want string) {
		t.Helper()
		eventually(t, name+": "+want, func() bool { return s.condition(t, kind, name, condition) == want })
	}
	labels := func(key, want string) {
		t.Helper()
		eventually(t, key+" "+want, func() bool { m, _ := workload.get(); return m.GetLabels()[key] == want })
	}

	serves("false")
	labels("name", "all-unauthenticated")
	policy := a.policy(t, "web.shop.svc.cluster.local:80")
	eventually(t, "no policy", func() bool { _, err := policy.get(); return status.Code(err) == codes.NotFound })
	s.apply(t, webService)
	serves("true")
	eventually(t, "a profile of the cluster IP", func() bool { m, _ := byIP.get(); return m.GetFullyQualifiedName() == "web.shop.svc.cluster.local" })
	s.apply(t, webSlice)
	serves("true 10.0.0.1:8080")
	s.apply(t, strings.ReplaceAll(webPod, "PORTS", "1"))
	const identity = "web.shop.serviceaccount.identity.linkerd.cluster.local"
	serves("true 10.0.0.1:8080=" + identity)
	require.Equal(t, map[string]string{
		"deployment": "web", "pod": "web-5d-1", "serviceaccount": "web", "pod_template_hash": "5d", "control_plane_ns": "linkerd",
	}, web.set["10.0.0.1:8080"].GetMetricLabels())
	ofPod := a.profile(t, "10.0.0.1:9000")
	eventually(t, "a profile of the pod", func() bool { m, _ := ofPod.get(); return m.GetEndpoint().GetMetricLabels()["namespace"] == "shop" })
	s.apply(t, strings.ReplaceAll(webPod, "PORTS", "8080"))
	serves("true 10.0.0.1:8080=" + identity + " opaque:4143")
	s.apply(t, strings.ReplaceAll(webPod, "PORTS", "1"))
	serves("true 10.0.0.1:8080=" + identity)

	s.apply(t, `
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {name: web.shop.svc.cluster.local, namespace: shop}
spec: {routes: [{name: read, condition: {method: GET}, timeout: 3s}]}
`)
	eventually(t, "routes", func() bool { m, _ := byIP.get(); return len(m.GetRoutes()) == 1 })
	s.remove(t, "ServiceProfile", "web.shop.svc.cluster.local")
	eventually(t, "no routes", func() bool { m, _ := profile.get(); return len(m.GetRoutes()) == 0 })

	policy = a.policy(t, "web.shop.svc.cluster.local:80")
	backends := func() []string {
		m, _ := policy.get()
		var names []string
		for _, r := range m.GetProtocol().GetDetect().GetHttp1().GetRoutes() {
			for _, rule := range r.GetRules() {
				for _, b := range rule.GetBackends().GetRandomAvailable().GetBackends() {
					names = append(names, fmt.Sprint(b.GetBackend().GetBackend().GetMetadata().GetResource().GetName(), b.GetWeight()))
				}
			}
		}
		return names
	}
	eventually(t, "the default policy", func() bool { m, _ := policy.get(); return m != nil && len(backends()) == 0 })
	s.apply(t, splitRoute)
	eventually(t, "a split to a missing backend", func() bool { return slices.Equal(backends(), []string{"web9", "1"}) })
	accepts("HTTPRoute", "split", "Accepted", "True Accepted")
	accepts("HTTPRoute", "split", "ResolvedRefs", "False BackendNotFound")
	s.apply(t, strings.NewReplacer("name: web", "name: canary", "10.96.0.10", "10.96.0.11").Replace(webService))
	eventually(t, "a split", func() bool { return slices.Equal(backends(), []string{"web9", "canary1"}) })
	accepts("HTTPRoute", "split", "ResolvedRefs", "True ResolvedRefs")
	s.apply(t, strings.NewReplacer("HTTPRoute", "GRPCRoute", "name: split", "name: calls").Replace(splitRoute))
	eventually(t, "a GRPCRoute", func() bool { m, _ := policy.get(); return m.GetProtocol().GetGrpc() != nil })
	accepts("GRPCRoute", "calls", "Accepted", "True Accepted")
	accepts("HTTPRoute", "split", "Accepted", "False RouteReasonConflicted")
	s.remove(t, "GRPCRoute", "calls")
	accepts("HTTPRoute", "split", "Accepted", "True Accepted")

	permitted := func() (all []string) {
		m, _ := workload.get()
		for _, a := range m.GetAuthorizations() {
			text := a.GetLabels()["name"]
			for _, id := range a.GetAuthentication().GetMeshTLS().GetIdentities().GetIdentities() {
				text += " " + id.GetName()
			}
			all = append(all, fmt.Sprint(text, " ", a.GetNetworks()[0].GetNet().GetPrefixLen()))
		}
		return all
	}
	s.apply(t, `
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web-http, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, port: http, proxyProtocol: HTTP/1}
`)
	labels("name", "web-http")
	require.Empty(t, permitted())
	s.apply(t, `
apiVersion: policy.linkerd.io/v1alpha1
kind: MeshTLSAuthentication
metadata: {name: front, namespace: shop}
spec: {identities: [front.example]}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: mesh, namespace: shop}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: web-http}
  requiredAuthenticationRefs:
  - {group: policy.linkerd.io, kind: MeshTLSAuthentication, name: front}
  - {group: policy.linkerd.io, kind: NetworkAuthentication, name: near}
`)
	s.apply(t, `
apiVersion: policy.linkerd.io/v1alpha1
kind: NetworkAuthentication
metadata: {name: near, namespace: shop}
spec: {networks: [{cidr: 10.0.0.0/8}]}
`)
	eventually(t, "an authorization", func() bool { return slices.Equal(permitted(), []string{"mesh front.example 8"}) })
	s.apply(t, `
apiVersion: policy.linkerd.io/v1alpha1
kind: MeshTLSAuthentication
metadata: {name: front, namespace: shop}
spec: {identities: [back.example]}
`)
	eventually(t, "another identity", func() bool { return slices.Equal(permitted(), []string{"mesh back.example 8"}) })
	s.apply(t, `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: health, namespace: shop}
spec:
  parentRefs: [{group: policy.linkerd.io, kind: Server, name: web-http}]
  rules: [{matches: [{path: {value: /healthz}}]}]
`)
	accepts("HTTPRoute", "health", "Accepted", "True Accepted")
	eventually(t, "a route of the Server", func() bool {
		m, _ := workload.get()
		routes := m.GetProtocol().GetHttp1().GetRoutes()
		return len(routes) == 1 && routes[0].GetMetadata().GetResource().GetName() == "health"
	})
	s.remove(t, "NetworkAuthentication", "near")
	eventually(t, "no authorization", func() bool { return len(permitted()) == 0 })
	s.apply(t, `
apiVersion: policy.linkerd.io/v1beta1
kind: ServerAuthorization
metadata: {name: old, namespace: shop}
spec: {server: {name: web-http}, client: {networks: [{cidr: 10.0.0.0/9}], meshTLS: {identities: [front.example]}}}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: HTTPLocalRateLimitPolicy
metadata: {name: limit, namespace: shop}
spec: {targetRef: {group: policy.linkerd.io, kind: Server, name: web-http}, total: {requestsPerSecond: 100}}
`)
	eventually(t, "a ServerAuthorization", func() bool { return slices.Equal(permitted(), []string{"old front.example 9"}) })
	eventually(t, "a rate limit", func() bool {
		m, _ := workload.get()
		return m.GetProtocol().GetHttp1().GetLocalRateLimit().GetTotal().GetRequestsPerSecond() == 100
	})

	s.otherKinds(t, a)

	// A second controller serves the same, and writes a status only after the first has ended.
	b := s.start(t, "b")
	other := b.endpoints(t, "web.shop.svc.cluster.local:80")
	eventually(t, "the same endpoints", func() bool { return other.String() == "true 10.0.0.1:8080="+identity })
	s.apply(t, strings.ReplaceAll(splitRoute, "name: split", "name: split-2"))
	accepts("HTTPRoute", "split-2", "Accepted", "True Accepted")
	const write = "update gateway.networking.k8s.io/httproutes/status"
	require.True(t, a.has(write))
	require.False(t, b.has(write), "the first controller is the leader")
	s.apply(t, webService)
	a.stop()
	s.apply(t, strings.ReplaceAll(splitRoute, "name: split", "name: split-3"))
	accepts("HTTPRoute", "split-3", "Accepted", "True Accepted")
	require.True(t, b.has(write))

	// Both controllers used exactly the rights that they have. A client lists only if the
	// API server does not send the first state as part of a watch.
	used := make(map[string]bool)
	for _, p := range []*process{a, b} {
		p.mu.Lock()
		maps.Copy(used, p.seen)
		require.Empty(t, p.forbidden)
		p.mu.Unlock()
	}
	granted := make(map[string]bool)
	for part := range strings.SplitSeq(RBAC, "\n---\n") {
		var role rbacv1.ClusterRole
		require.NoError(t, yaml.Unmarshal([]byte(part), &role))
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					granted[verb+" "+rule.APIGroups[0]+"/"+resource] = true
					if verb == "list" {
						used["list "+rule.APIGroups[0]+"/"+resource] = true
					}
				}
			}
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(granted)), slices.Sorted(maps.Keys(used)))

	// Without the API server, the last state is served. Changes arrive after its return, and
	// a leader is elected again.
	s.Kill(t)
	late := b.endpoints(t, "web.shop.svc.cluster.local:80")
	eventually(t, "the last endpoints", func() bool { return late.String() == "true 10.0.0.1:8080="+identity })
	time.Sleep(5 * time.Second) // longer than the Lease
	require.Equal(t, "true 10.0.0.1:8080="+identity, other.String())
	s.Start(t)
	s.apply(t, strings.ReplaceAll(webSlice, "endpoints: [", "endpoints: [{addresses: [10.0.0.2]}, "))
	eventually(t, "another endpoint", func() bool { return strings.Contains(late.String(), "10.0.0.2:8080") })
	require.NoError(t, other.err, "the stream did not end")
	s.apply(t, strings.ReplaceAll(splitRoute, "name: split", "name: split-4"))
	accepts("HTTPRoute", "split-4", "Accepted", "True Accepted")
}

// kindCase is a document of testdata/kinds.yaml.
type kindCase struct {
	Object  map[string]any `json:"object"`
	Values  [2]string      `json:"values"`
	Marks   [2]string      `json:"marks"`
	Streams []string       `json:"streams"` // "policy NAME", "outside", "profile NAME", "port NUMBER" or "endpoints NAME"

	text     string                             // of the document
	received []func() (message string, ok bool) // the last message of each stream
}

// object returns the object with one of the values.
func (k *kindCase) object(t *testing.T, value string) *unstructured.Unstructured {
	t.Helper()
	var parsed kindCase
	require.NoError(t, yaml.Unmarshal([]byte(strings.ReplaceAll(k.text, "VALUE", value)), &parsed))
	return &unstructured.Unstructured{Object: parsed.Object}
}

// open opens the streams of the case at p.
func (k *kindCase) open(t *testing.T, p *process) {
	t.Helper()
	for _, stream := range k.Streams {
		kind, name, _ := strings.Cut(stream, " ")
		switch kind {
		case "policy":
			k.received = append(k.received, lastMessage(t, p.policy(t, name)))
		case "outside":
			spec := &outbound.TrafficSpec{SourceWorkload: `{"ns":"shop"}`, Target: outsideTarget}
			k.received = append(k.received, lastMessage(t, p.policyFor(t, spec)))
		case "profile":
			k.received = append(k.received, lastMessage(t, p.profile(t, name)))
		case "port":
			number, err := strconv.ParseUint(name, 10, 16)
			require.NoError(t, err)
			k.received = append(k.received, lastMessage(t, p.port(t, `{"ns":"shop","pod":"base"}`, uint32(number))))
		case "endpoints":
			all := p.endpointsFor(t, `{"ns":"shop","nodeName":"n1"}`, name)
			k.received = append(k.received, func() (string, bool) { text := all.String(); return text, text != "?" })
		default:
			require.Fail(t, "unknown stream", stream)
		}
	}
}

// lastMessage returns a function for the last message of a stream, in the form of JSON.
func lastMessage[M proto.Message](t *testing.T, l *latest[M]) func() (string, bool) {
	t.Helper()
	return func() (string, bool) {
		msg, err := l.get()
		require.NoError(t, err)
		return jsonOf(t, message(t, msg)), msg.ProtoReflect().IsValid()
	}
}

// seen returns what the client has received, and the index of the mark in it: -1 if it has neither or
// both, and -2 if a stream has no message yet.
func (k *kindCase) seen() (text string, mark int) {
	for i, received := range k.received {
		msg, ok := received()
		if !ok {
			return "", -2
		}
		text += k.Streams[i] + " " + msg + "\n"
	}
	first, second := strings.Contains(text, k.Marks[0]), strings.Contains(text, k.Marks[1])
	switch {
	case first == second:
		return text, -1
	case first:
		return text, 0
	}
	return text, 1
}

// act calls change, and returns the time until the client sees the mark with the given index.
func (k *kindCase) act(t *testing.T, mark int, change func()) time.Duration {
	t.Helper()
	began := time.Now()
	change()
	for {
		text, got := k.seen()
		if got == mark {
			return time.Since(began)
		}
		if time.Since(began) > time.Minute {
			require.FailNow(t, "no effect after a minute", "%v: want mark %d, the client received:\n%s", k.Object, mark, text)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// kindsBase has the objects to which those of testdata/kinds.yaml refer, or that they affect. Others are the Service web
// and its pod.
const kindsBase = `
{apiVersion: v1, kind: Namespace, metadata: {name: late}}
---
{apiVersion: v1, kind: Service, metadata: {name: s, namespace: late}, spec: {ports: [{name: a, port: 80}, {name: b, port: 81}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: http, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: other, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: zones, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: zones-1, namespace: shop, labels: {kubernetes.io/service-name: zones}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints:
- {addresses: [10.0.0.7], zone: a, targetRef: {kind: ExternalWorkload, name: vm, namespace: shop}, hints: {forZones: [{name: a}]}}
- {addresses: [10.0.0.8], zone: b, hints: {forZones: [{name: b}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: named-1, namespace: shop, labels: {kubernetes.io/service-name: named}}
addressType: IPv4
ports: [{name: one, port: 8081}, {name: two, port: 8082}]
endpoints: [{addresses: [10.0.0.9]}]
---
apiVersion: v1
kind: Service
metadata: {name: federated, namespace: shop, annotations: {multicluster.linkerd.io/remote-discovery: web@west}}
spec: {ports: [{name: http, port: 80}]}
---
{apiVersion: v1, kind: Pod, metadata: {name: base, namespace: shop, labels: {app: base}}, spec: {containers: [{name: web, image: web}]}}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: MeshTLSAuthentication
metadata: {name: one, namespace: shop}
spec: {identities: [one.test]}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: MeshTLSAuthentication
metadata: {name: two, namespace: shop}
spec: {identities: [two.test]}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: mesh, namespace: shop}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: mesh}
  requiredAuthenticationRefs: [{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: clients}]
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: network, namespace: shop}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: network}
  requiredAuthenticationRefs: [{group: policy.linkerd.io, kind: NetworkAuthentication, name: clients}]
`

// A new object of each kind, a change of it and its removal act on the streams of a client at once. The
// log has the medians of the times until the client sees them, which are a few milliseconds, or 0.1 s for
// a linked cluster, whose objects the controller reads first. The bound only excludes an effect that waits
// for something, such as a resync, because other tests may run on the same computer.
func TestRealAPIServerKinds(t *testing.T) {
	const rounds, bound = 5, 10 * time.Second
	s := newAPIServer(t)
	s.define(t)
	s.apply(t, kindsBase)
	for _, text := range []string{webService, webSlice, strings.ReplaceAll(webPod, "PORTS", "1")} {
		s.apply(t, text)
	}
	for i, name := range []string{"policy", "mesh", "network", "old", "rate"} {
		s.apply(t, fmt.Sprintf(`{apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: %s, namespace: shop},
 spec: {podSelector: {matchLabels: {app: base}}, port: %d, proxyProtocol: HTTP/1}}`, name, 9001+i))
	}
	s.removeObject(t, documents(t, "{apiVersion: v1, kind: Namespace, metadata: {name: late}}")[0])
	rights, err := os.ReadFile("rbac-links.yaml")
	require.NoError(t, err)
	s.apply(t, string(rights))
	p := s.start(t, "a", func(s *Settings) { s.LinkedClusters = true })
	zones := p.endpoints(t, "zones.shop.svc.cluster.local:80")
	eventually(t, "all objects", func() bool { return zones.String() == "true 10.0.0.7:80 10.0.0.8:80" })

	text, err := os.ReadFile("testdata/kinds.yaml")
	require.NoError(t, err)
	untested := append(slices.Collect(maps.Keys(p.watcher.informers)), "Secret")
	kubeconfig := base64.StdEncoding.EncodeToString(s.link())
	for part := range strings.SplitSeq(strings.ReplaceAll(string(text), "KUBECONFIG", kubeconfig), "\n---\n") {
		k := &kindCase{text: part}
		require.NoError(t, yaml.UnmarshalStrict([]byte(part), k), part)
		if k.Marks == [2]string{} {
			k.Marks = k.Values
		}
		kind := kindOf(k.object(t, ""))
		t.Run(kind, func(t *testing.T) {
			k.open(t, p)
			k.act(t, -1, func() {})
			var created, changed, removed []time.Duration
			for range rounds {
				o := k.object(t, k.Values[0])
				created = append(created, k.act(t, 0, func() { s.applyObject(t, o) }))
				o = k.object(t, k.Values[1])
				changed = append(changed, k.act(t, 1, func() { s.applyObject(t, o) }))
				removed = append(removed, k.act(t, -1, func() { s.removeObject(t, o) }))
			}
			for _, action := range []struct {
				name  string
				times []time.Duration
			}{{"creation", created}, {"change", changed}, {"removal", removed}} {
				slices.Sort(action.times)
				median, maximum := action.times[rounds/2].Round(time.Millisecond), action.times[rounds-1].Round(time.Millisecond)
				t.Logf("%s, %s: median %v, maximum %v", kind, action.name, median, maximum)
				assert.Less(t, median, bound, action.name)
			}
		})
		untested = slices.DeleteFunc(untested, func(u string) bool { return u == kind })
	}
	require.Empty(t, untested, "kinds without a case")
}
