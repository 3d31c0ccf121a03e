package kube

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/internal/kubetest"
)

var (
	scaleServices = flag.Int("services", 10_000, "number of Services of TestRealAPIServerScale, with five endpoints each")
	scaleAway     = flag.Duration("away", 40*time.Second, "how long the API server is not available")
)

const (
	perService = 5
	watchers   = 1000 // streams of the Service that changes
	changes    = 100
)

// populate stores the Services, each with an EndpointSlice and the pods of its endpoints, in
// etcd. The API server serves them as if it had created them, which would take minutes.
func populate(t *testing.T, s *apiServer) {
	t.Helper()
	codec := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	var puts []any
	flush := func() {
		text, err := json.Marshal(map[string]any{"success": puts})
		require.NoError(t, err)
		rsp, err := http.Post(s.Etcd+"/v3/kv/txn", "application/json", bytes.NewReader(text))
		require.NoError(t, err)
		answer, err := io.ReadAll(rsp.Body)
		require.NoError(t, errors.Join(err, rsp.Body.Close()))
		require.Equal(t, http.StatusOK, rsp.StatusCode, "%s", answer)
		puts = nil
	}
	put := func(prefix string, o interface {
		runtime.Object
		metav1.Object
	}, kind schema.GroupVersionKind) {
		o.SetNamespace("shop")
		o.SetUID(types.UID(rand.Text()))
		o.SetCreationTimestamp(metav1.Now())
		o.GetObjectKind().SetGroupVersionKind(kind)
		var value bytes.Buffer
		require.NoError(t, codec.Encode(o, &value))
		puts = append(puts, map[string]any{"requestPut": map[string]any{
			"key": []byte("/registry/" + prefix + "/shop/" + o.GetName()), "value": value.Bytes(),
		}})
		if len(puts) == 100 {
			flush()
		}
	}
	for i := range *scaleServices {
		name, ip := fmt.Sprintf("svc-%d", i), scaleAddr(10, 96<<16+1<<10+i)
		put("services/specs", &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Ports:    []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
				Selector: map[string]string{"app": name}, SessionAffinity: corev1.ServiceAffinityNone,
			},
		}, corev1.SchemeGroupVersion.WithKind("Service"))
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name, Generation: 1, Labels: map[string]string{workloadService: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		}
		for j := range perService {
			pod := scalePod(name, j)
			ip := scaleAddr(10, i*perService+j)
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
			put("pods", pod, corev1.SchemeGroupVersion.WithKind("Pod"))
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{ip}, Zone: new("zone-a"), NodeName: new("node-1"),
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: pod.Name},
			})
		}
		put("endpointslices", slice, discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"))
	}
	flush()
	require.EventuallyWithT(t, func(c *assert.CollectT) { // the API server reads etcd with a delay
		pods, err := s.Client(t, kubetest.Admin).CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{Limit: 1})
		require.NoError(c, err)
		require.NotNil(c, pods.RemainingItemCount)
		require.EqualValues(c, *scaleServices*perService-1, *pods.RemainingItemCount)
	}, time.Minute, 100*time.Millisecond)
}

// scalePod returns a pod such as a Deployment and linkerd's injector make it.
func scalePod(service string, i int) *corev1.Pod {
	container := func(name string) corev1.Container {
		c := corev1.Container{Name: name, Image: "registry.example/" + name + ":v1"}
		for k := range 20 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", k), Value: "a value of some length"})
		}
		return c
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:        fmt.Sprintf("%s-5d9f8-%d", service, i),
			Labels:      map[string]string{"app": service, templateHashLabel: "5d9f8", controlPlaneLabel: "linkerd"},
			Annotations: map[string]string{"linkerd.io/proxy-version": "v1", "other.example/annotation": "not kept"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: service + "-5d9f8", UID: "1", Controller: new(true),
			}},
		},
		Spec: corev1.PodSpec{ServiceAccountName: service, Containers: []corev1.Container{container("app"), container(proxyContainer)}},
	}
}

// scaleAddr returns the address with the number n in the network first.0.0.0/8.
func scaleAddr(first byte, n int) string {
	return netip.AddrFrom4([4]byte{first, byte(n >> 16), byte(n >> 8), byte(n)}).String()
}

// program is a running examples/destination.
type program struct {
	cmd  *exec.Cmd
	addr string
	log  string
}

// launch starts the program and returns when it has served its first answer.
func (s *apiServer) launch(t *testing.T, path, addr string) (*program, time.Duration) {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: "https://127.0.0.1:%s", insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: "%s"}}]
`, s.Port, s.token)), 0o600))
	p := &program{addr: addr, log: filepath.Join(dir, "log")}
	log, err := os.Create(p.log)
	require.NoError(t, err)
	defer log.Close()
	began := time.Now()
	p.cmd = exec.Command(path, "-kubernetes", "-kubeconfig", kubeconfig, "-listen", addr)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(p.log)
			t.Log(string(text[max(0, len(text)-4000):]))
		}
	})
	conn := dial(t, addr)
	require.Eventually(t, func() bool { return answer(t.Context(), conn, 0) == nil }, 3*time.Minute, 5*time.Millisecond)
	return p, time.Since(began)
}

// memory returns a value of /proc/PID/status in MiB.
func (p *program) memory(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(t, err)
	m := regexp.MustCompile(name + `:\s*(\d+) kB`).FindStringSubmatch(string(text))
	require.NotNil(t, m)
	var n int
	_, err = fmt.Sscan(m[1], &n)
	require.NoError(t, err)
	return n / 1024
}

func dial(t *testing.T, target string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { // to the first of several addresses that accepts
			var err error
			for one := range strings.SplitSeq(addr, ",") {
				var c net.Conn
				if c, err = new(net.Dialer).DialContext(ctx, "tcp", one); err == nil {
					return c, nil
				}
			}
			return nil, err
		}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func scaleName(i int) string { return fmt.Sprintf("svc-%d.shop.svc.cluster.local:80", i) }

// answer requests the endpoints of a Service and returns an error unless there are any.
func answer(ctx context.Context, conn *grpc.ClientConn, i int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := pb.NewDestinationClient(conn).Get(ctx, &pb.GetDestination{Path: scaleName(i)})
	if err != nil {
		return err
	}
	u, err := stream.Recv()
	if err == nil && len(u.GetAdd().GetAddrs()) < perService {
		err = fmt.Errorf("%v", u)
	}
	return err
}

// arrival is an address that a watcher received.
type arrival struct {
	addr string
	at   time.Time
}

// watch opens a stream for a Service and sends the addresses that are added to it, until
// the stream ends. It returns when the first message has arrived.
func watch(ctx context.Context, conn *grpc.ClientConn, i int, all *sync.WaitGroup, arrivals chan<- arrival) error {
	stream, err := pb.NewDestinationClient(conn).Get(ctx, &pb.GetDestination{Path: scaleName(i)})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		return err
	}
	all.Go(func() {
		for {
			u, err := stream.Recv()
			if err != nil {
				return
			}
			for _, a := range u.GetAdd().GetAddrs() {
				arrivals <- arrival{addrText(a.GetAddr()), time.Now()}
			}
		}
	})
	return nil
}

// prober requests the endpoints of one Service after the other. A request that fails is
// repeated, as proxies do. slowest is the longest time until an answer.
type prober struct {
	answers, repeated int
	slowest           time.Duration
}

func (p *prober) run(ctx context.Context, conn *grpc.ClientConn) {
	for i := 0; ctx.Err() == nil; i++ {
		began := time.Now()
		for answer(ctx, conn, i%*scaleServices) != nil {
			if ctx.Err() != nil {
				return
			}
			p.repeated++
			time.Sleep(time.Millisecond)
		}
		p.answers++
		p.slowest = max(p.slowest, time.Since(began))
		time.Sleep(5 * time.Millisecond)
	}
}

// during runs a prober while do runs.
func during(t *testing.T, target string, do func()) *prober {
	t.Helper()
	p, conn := new(prober), dial(t, target)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { p.run(ctx, conn) })
	do()
	cancel()
	all.Wait()
	return p
}

// The program examples/destination serves a cluster with many Services: its memory, the time
// to its first answer, the time of a change, a restart, and the absence of the API server.
func TestRealAPIServerScale(t *testing.T) {
	s := newAPIServer(t)
	s.define(t)
	path := filepath.Join(t.TempDir(), "destination")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, "github.com/gotower/gotower/examples/destination").CombinedOutput()
	require.NoError(t, err, "%s", out)
	began := time.Now()
	populate(t, s)
	t.Logf("%d Services and %d endpoints stored in %.0f s", *scaleServices, *scaleServices*perService, time.Since(began).Seconds())

	first := freeport.Addr(t)
	p, took := s.launch(t, path, first)
	t.Logf("first answer after %.1f s; memory %d MiB, at most %d MiB", took.Seconds(), p.memory(t, "VmRSS"), p.memory(t, "VmHWM"))

	// One stream for each Service, and many for the one that changes.
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	arrivals := make(chan arrival, watchers*changes)
	others := make(chan arrival, 1)
	group := new(errgroup.Group)
	group.SetLimit(32)
	var conns []*grpc.ClientConn
	for range 100 {
		conns = append(conns, dial(t, first))
	}
	began = time.Now()
	for i := range *scaleServices {
		group.Go(func() error { return watch(ctx, conns[i%100], i, &all, others) })
	}
	for i := range watchers {
		group.Go(func() error { return watch(ctx, conns[i%100], 0, &all, arrivals) })
	}
	require.NoError(t, group.Wait())
	t.Logf("%d streams opened in %.1f s; memory %d MiB", *scaleServices+watchers, time.Since(began).Seconds(), p.memory(t, "VmRSS"))
	go func() { // the stream of the changed Service that is not a watcher
		for range others {
		}
	}()

	slices0 := s.Client(t, kubetest.Admin).DiscoveryV1().EndpointSlices("shop")
	change := func(n int) (latencies []time.Duration) {
		current, err := slices0.Get(t.Context(), "svc-0", metav1.GetOptions{})
		require.NoError(t, err)
		addr := scaleAddr(11, n)
		current.Endpoints = append(current.Endpoints[:perService], discoveryv1.Endpoint{Addresses: []string{addr}})
		sent := time.Now()
		_, err = slices0.Update(t.Context(), current, metav1.UpdateOptions{})
		require.NoError(t, err)
		timeout := time.After(time.Minute)
		for len(latencies) < watchers {
			select {
			case a := <-arrivals:
				if a.addr == addr+":8080" {
					latencies = append(latencies, a.at.Sub(sent))
				}
			case <-timeout:
				require.Len(t, latencies, watchers)
			}
		}
		return latencies
	}
	var latencies []time.Duration
	for n := range changes {
		latencies = append(latencies, change(n)...)
	}
	slices.Sort(latencies)
	p99 := latencies[len(latencies)*99/100]
	t.Logf("%d changes to %d watchers: p50 %v, p99 %v, max %v", changes, watchers,
		latencies[len(latencies)/2].Round(time.Millisecond), p99.Round(time.Millisecond), latencies[len(latencies)-1].Round(time.Millisecond))
	require.Less(t, p99, time.Second)

	// The API server is killed and started again. All names have their last state.
	var back time.Duration
	probed := during(t, first, func() {
		s.Kill(t)
		time.Sleep(*scaleAway)
		s.Start(t)
		began := time.Now()
		require.Len(t, change(changes), watchers, "no stream has ended")
		back = time.Since(began)
	})
	t.Logf("API server away for %v: %d answers, %d repeated, the slowest after %v; a change arrived %.1f s after its return",
		*scaleAway, probed.answers, probed.repeated, probed.slowest.Round(time.Millisecond), back.Seconds())
	require.Zero(t, probed.repeated)
	require.Positive(t, probed.answers)
	require.Less(t, back, 20*time.Second)

	// Another process starts, and then the first one ends, as in the update of a Deployment.
	second := freeport.Addr(t)
	probed = during(t, first+","+second, func() {
		_, took = s.launch(t, path, second)
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		_ = p.cmd.Wait()
		time.Sleep(time.Second)
	})
	t.Logf("restart: the new process answered after %.1f s; %d answers, %d repeated, the slowest after %v",
		took.Seconds(), probed.answers, probed.repeated, probed.slowest.Round(time.Millisecond))
	require.Less(t, probed.slowest, 2*time.Second)
	cancel()
	all.Wait()
	close(others)
}
