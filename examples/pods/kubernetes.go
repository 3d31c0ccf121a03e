package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	destinationkube "github.com/gotower/gotower/examples/destination/kube"
	"github.com/gotower/gotower/examples/identity/ca"
	identitykube "github.com/gotower/gotower/examples/identity/kube"
)

// apiPort is the port of the API server, which listens at the bridge's address.
const apiPort = 6443

// apiServer is the API server's client, which may do everything.
type apiServer struct {
	client  kubernetes.Interface
	dynamic dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

// kubePrograms returns the directory with the programs that .ci/kube.sh builds.
func kubePrograms() (string, error) {
	dir := os.Getenv("GOTOWER_KUBE") // that of .ci/kube.sh
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(cache, "gotower-kube")
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil { //nolint:gosec // the directory of the user
			return "", fmt.Errorf("%w; .ci/kube.sh builds it", err)
		}
	}
	return dir, nil
}

// startAPIServer starts etcd and a kube-apiserver outside of the pods, and creates the cluster's
// objects.
func (r *running) startAPIServer(ctx context.Context) error {
	programs, err := kubePrograms()
	if err != nil {
		return err
	}
	dir := r.path("run", "kube")
	// The API server signs the tokens of ServiceAccounts with this key.
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	// The token for this program, which may do everything because of its group.
	token := rand.Text()
	if err := errors.Join(
		makePrivateDir(dir, root),
		writePrivateFile(dir+"/key", string(pem.EncodeToMemory(block)), root),
		writePrivateFile(dir+"/tokens", token+",admin,1,system:masters\n", root),
	); err != nil {
		return err
	}
	// --unsafe-no-fsync saves time, because the data is not needed after the end.
	const etcd = "http://127.0.0.1:2379"
	if _, err := r.start(pod{}, root, "etcd", nil, filepath.Join(programs, "etcd"), "--data-dir", dir+"/etcd", "--unsafe-no-fsync",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd); err != nil {
		return err
	}
	// The network's first address belongs to the Service kubernetes.
	if _, err := r.start(pod{}, root, "kube-apiserver", nil, filepath.Join(programs, "kube-apiserver"),
		"--etcd-servers", etcd, "--cert-dir", dir+"/certificates",
		"--bind-address", gateway.String(), "--advertise-address", gateway.String(), "--secure-port", strconv.Itoa(apiPort),
		"--service-cluster-ip-range", "10.76.0.0/14", "--authorization-mode", "RBAC",
		"--token-auth-file", dir+"/tokens", "--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", dir+"/key", "--service-account-signing-key-file", dir+"/key",
		"--disable-admission-plugins", "ServiceAccount"); err != nil {
		return err
	}
	cfg := &rest.Config{
		Host: apiURL(), BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, // nothing else is in the sandbox
	}
	// mapper learns the kinds of objects from the API server when it needs them.
	a := new(apiServer)
	if a.client, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	if a.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		return err
	}
	a.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(a.client.Discovery()))
	r.apiServer = a
	// The API server needs some seconds. alive ends the wait early if a process has ended.
	if err := until(ctx, "the API server", func() (bool, error) {
		_, err := a.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil, r.alive()
	}); err != nil {
		return err
	}
	// The definitions of kinds come first, because the other objects need them.
	if err := a.applyText(ctx, destinationkube.CRDs()); err != nil {
		return err
	}
	if err := a.applyText(ctx, `
apiVersion: v1
kind: Namespace
metadata: {name: linkerd}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: linkerd-destination, namespace: linkerd}
---
`+destinationkube.RBAC+"\n---\n"+identitykube.RBAC(identitykube.Namespace)); err != nil {
		return err
	}
	return errors.Join(a.apply(ctx, r.objects()...), r.setPolicy(ctx, r.shopSplit(100, 0)))
}

// apiURL returns the address of the API server as the pods see it.
func apiURL() string { return "https://" + net.JoinHostPort(gateway.String(), strconv.Itoa(apiPort)) }

// applyText creates or changes the objects in text, which is YAML.
func (a *apiServer) applyText(ctx context.Context, text string) error {
	for document := range strings.SplitSeq(text, "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			return err
		}
		// A document with comments only is empty.
		if o == nil {
			continue
		}
		if err := a.apply(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// apply creates or changes objects with their status. It waits until the API server knows the
// objects' kinds, because a new CRD is served only after a moment.
func (a *apiServer) apply(ctx context.Context, objects ...object) error {
	for _, o := range objects {
		u, err := unstructuredOf(o)
		if err != nil {
			return err
		}
		// Force takes over fields that another manager has set, so that no conflict can fail the call.
		options := metav1.ApplyOptions{FieldManager: "pods", Force: true}
		err = until(ctx, "the kind "+u.GetKind(), func() (bool, error) {
			resource, err := a.resource(u)
			if err == nil {
				_, err = resource.Apply(ctx, u.GetName(), u, options)
			}
			// The kind is not known yet. Reset makes the mapper ask the API server again.
			if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
				a.mapper.Reset()
				return false, nil
			}
			// The API server ignores the status in an object, and only stores it by this call.
			if _, found := o["status"]; err == nil && found {
				_, err = resource.ApplyStatus(ctx, u.GetName(), u, options)
			}
			return err == nil, err
		})
		if err != nil {
			return fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// unstructuredOf returns o in the form that the API client needs.
func unstructuredOf(o object) (*unstructured.Unstructured, error) {
	// The detour over JSON yields the types that it expects, such as int64 for numbers.
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	u := new(unstructured.Unstructured)
	return u, u.UnmarshalJSON(text)
}

// resource returns the client for u's kind and namespace.
func (a *apiServer) resource(u *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := u.GroupVersionKind()
	m, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	// Objects of this kind are in no namespace.
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		return a.dynamic.Resource(m.Resource), nil
	}
	return a.dynamic.Resource(m.Resource).Namespace(u.GetNamespace()), nil
}

// newObject returns an object with the given name in the namespace default. fields contains all
// fields except apiVersion, kind and the name.
func newObject(version, kind, name string, fields object) object {
	o := object{"apiVersion": version, "kind": kind}
	maps.Copy(o, fields)
	// The caller may have set labels or annotations.
	metadata, _ := o["metadata"].(object)
	if metadata == nil {
		metadata = object{}
	}
	metadata["name"] = name
	metadata["namespace"] = "default"
	o["metadata"] = metadata
	return o
}

// objects returns the cluster's objects, without shop's policy: a Pod and a ServiceAccount for
// each pod with a proxy, and a Service and an EndpointSlice for each service. The policies for
// the services api and redis permit only the service account client.
func (c cluster) objects() (all []object) {
	for _, p := range c.meshed() {
		annotations := object{}
		if p.opaque != "" {
			annotations[opaquePorts] = p.opaque + "," + c.redis.port()
		}
		// The controller only treats a pod as one with a proxy if it has a container named linkerd-proxy.
		container := func(name string) object { return object{"name": name, "image": "example.com/" + name} }
		all = append(all,
			newObject("v1", "ServiceAccount", p.account, nil),
			newObject("v1", "Pod", p.name, object{
				"metadata": object{
					"labels":      object{"pod": p.name, "linkerd.io/control-plane-ns": identitykube.Namespace},
					"annotations": annotations,
				},
				"spec":   object{"serviceAccountName": p.account, "containers": []object{container("app"), container("linkerd-proxy")}},
				"status": object{"phase": "Running", "podIP": p.addr.String(), "podIPs": []object{{"ip": p.addr.String()}}},
			}))
	}
	// The EndpointSlice leads to the pods by their addresses.
	for _, s := range c.services() {
		endpoints := make([]object, 0, len(s.pods))
		for _, p := range s.pods {
			endpoints = append(endpoints, object{
				"addresses": []string{p.addr.String()}, "targetRef": object{"kind": "Pod", "namespace": "default", "name": p.name},
			})
		}
		all = append(all, s.object(nil), newObject("discovery.k8s.io/v1", "EndpointSlice", s.name, object{
			"metadata": object{"labels": object{"kubernetes.io/service-name": s.name}}, "addressType": "IPv4",
			"ports": []object{{"name": "port", "port": s.addr.Port(), "protocol": "TCP"}}, "endpoints": endpoints,
		}))
	}
	// Each Server has an AuthorizationPolicy with the same name.
	for _, s := range []service{c.api, c.redis} {
		for _, p := range s.pods {
			name := s.serverName(p)
			all = append(all,
				newObject(policyGroup+"/v1beta3", "Server", name, object{"spec": object{
					"podSelector": object{"matchLabels": object{"pod": p.name}}, "port": s.addr.Port(),
				}}),
				newObject(policyGroup+"/v1alpha1", "AuthorizationPolicy", name, object{"spec": object{
					"targetRef":                  object{"group": policyGroup, "kind": "Server", "name": name},
					"requiredAuthenticationRefs": []object{{"kind": "ServiceAccount", "name": "client", "namespace": "default"}},
				}}))
		}
	}
	return all
}

// opaquePorts is an annotation with the ports whose connections are forwarded as bytes. policyGroup is the
// API group of linkerd's policies.
const (
	opaquePorts = "config.linkerd.io/opaque-ports"
	policyGroup = "policy.linkerd.io"
)

// object returns the Service with the given annotations.
func (s service) object(annotations object) object {
	if annotations == nil {
		annotations = object{}
	}
	if s.opaque {
		// This annotation tells the controller that the port is opaque.
		annotations[opaquePorts] = s.port()
	}
	return newObject("v1", "Service", s.name, object{
		"metadata": object{"annotations": annotations},
		"spec": object{
			"clusterIP": s.addr.Addr().String(),
			"ports":     []object{{"name": "port", "port": s.addr.Port(), "protocol": "TCP"}},
		},
	})
}

// applyShop makes policy the outbound policy for shop. policy is written as in the controller's
// configuration file; applyShop translates it to an HTTPRoute or to annotations on the Service.
func (r *running) applyShop(ctx context.Context, policy object) error {
	// linkerd configures failure accrual by annotations of the Service. Without it in policy, the Service gets none, and
	// those of an earlier policy disappear.
	annotations := object{}
	accrual, _ := policy["failureAccrual"].(object)
	for field, annotation := range map[string]string{
		"maxFailures": "max-failures", "minPenalty": "min-penalty", "maxPenalty": "max-penalty", "jitterRatio": "jitter-ratio",
	} {
		if value, ok := accrual[field]; ok {
			annotations["balancer.linkerd.io/failure-accrual"] = "consecutive"
			annotations["balancer.linkerd.io/failure-accrual-consecutive-"+annotation] = fmt.Sprint(value)
		}
	}
	if err := r.apiServer.apply(ctx, r.shop.object(annotations)); err != nil {
		return err
	}
	route := newObject("gateway.networking.k8s.io/v1", "HTTPRoute", "shop-route", nil)
	routes, _ := policy["httpRoutes"].([]object)
	// The policy has no routes, so the route of an earlier policy is deleted.
	if len(routes) == 0 {
		u, err := unstructuredOf(route)
		if err != nil {
			return err
		}
		resource, err := r.apiServer.resource(u)
		if err != nil {
			return err
		}
		return resource.Delete(ctx, "shop-route", metav1.DeleteOptions{})
	}
	rules, _ := routes[0]["rules"].([]object)
	for _, rule := range rules {
		backends, _ := rule["backendRefs"].([]object)
		// The controller's file names a backend by its host, and an HTTPRoute by its Service, the host's first label.
		for _, b := range backends {
			b["name"], _, _ = strings.Cut(fmt.Sprint(b["name"]), ".")
		}
	}
	// The parent makes it a route for requests to the Service shop.
	route["spec"] = object{"parentRefs": []object{{"group": "", "kind": "Service", "name": r.shop.name}}, "rules": rules}
	return r.apiServer.apply(ctx, route)
}

// kubeconfig writes a kubeconfig file for a client with the rights of the service account in the
// control plane's namespace. It returns the file's path.
func (r *running) kubeconfig(ctx context.Context, account string) (string, error) {
	token, err := r.apiServer.token(ctx, identitykube.Namespace, account)
	if err != nil {
		return "", err
	}
	file := r.path("run", account+".kubeconfig")
	// The certificate is not verified, because nothing else is in the sandbox.
	return file, writePrivateFile(file, fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: pods
contexts: [{name: pods, context: {cluster: pods, user: pods}}]
clusters: [{name: pods, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: pods, user: {token: %q}}]
`, apiURL(), token), app)
}

// token returns a token of a service account. audiences are the token's recipients. Without
// audiences, the token is for the API server.
func (a *apiServer) token(ctx context.Context, namespace, account string, audiences ...string) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	token, err := a.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return token.Status.Token, nil
}

// makeIssuer creates a CA as the installation of linkerd does: the trust anchors are in a
// ConfigMap, and the issuer is in a directory with a Secret's files.
func (r *running) makeIssuer(ctx context.Context) error {
	dir := filepath.Dir(r.anchors())
	if err := makePrivateDir(dir, app); err != nil {
		return err
	}
	if _, err := ca.Open(dir, "cluster.local"); err != nil {
		return err
	}
	// A Secret of the type kubernetes.io/tls has these names.
	for src, dst := range map[string]string{"issuer.pem": "tls.crt", "issuer.key": "tls.key"} {
		dst = filepath.Join(dir, dst)
		if err := errors.Join(os.Rename(filepath.Join(dir, src), dst), os.Chown(dst, app, app)); err != nil {
			return err
		}
	}
	anchors, err := os.ReadFile(r.anchors())
	if err != nil {
		return err
	}
	o := newObject("v1", "ConfigMap", "linkerd-identity-trust-roots", object{"data": object{"ca-bundle.crt": string(anchors)}})
	// newObject has set the namespace default.
	o["metadata"] = object{"name": "linkerd-identity-trust-roots", "namespace": identitykube.Namespace}
	return r.apiServer.apply(ctx, o)
}
