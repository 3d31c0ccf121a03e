package cluster

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// tapped starts the tap of a pod at ip. Its requests go to 10.0.0.9 until the end of the test.
func tapped(t *testing.T, name, ip string) *corev1.Pod {
	t.Helper()
	reg := tap.NewRegistry()
	l, err := net.Listen("tcp", ip+":0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	tap.NewServer(reg).Register(srv)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	svc := tap.Layer(reg, httplayer.HTTP{}, tap.Outbound, tap.WithDestination(netip.MustParseAddrPort("10.0.0.9:80"), nil))(
		layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
			return httptest.NewRecorder().Result(), nil
		}))
	ctx, cancel := context.WithCancel(context.Background())
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if rsp, err := svc.Call(ctx, httptest.NewRequest(http.MethodGet, "http://web/x", http.NoBody)); err == nil {
				_ = rsp.Body.Close()
			}
			<-tick.C
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-sent
		srv.Stop()
		require.NoError(t, <-served)
	})
	p := running(name, "StatefulSet", "web", ip)
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	p.Spec.Containers[1].Ports = []corev1.ContainerPort{{Name: "linkerd-tap", ContainerPort: int32(number)}}
	return p
}

// The taps of all pods are merged. Pods that come and go are followed.
func TestSource(t *testing.T) {
	t.Parallel()
	db := running("db", "", "", "10.0.0.9")
	unmeshed := running("unmeshed", "StatefulSet", "web", "10.0.0.8")
	unmeshed.Spec.Containers = unmeshed.Spec.Containers[:1]
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	c, client, watching := newCluster(ns, db, unmeshed, tapped(t, "web-0", "127.0.42.1"))
	s := &Source{Cluster: c, Resources: []Resource{{"statefulset", "n", ""}}, Dial: func(_ context.Context, p Pod) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///"+p.Tap, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}}
	second := tapped(t, "web-1", "127.0.42.2")
	later := func() { // without require, because it is called by other goroutines
		<-watching
		_, err := client.CoreV1().Pods("n").Create(t.Context(), second, metav1.CreateOptions{})
		assert.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go later()
	seen := map[string]int{}
	for e, err := range s.Watch(ctx, &tappb.WatchRequest{}, 1000) {
		if err != nil {
			require.EqualError(t, err, "unmeshed: the pod has no proxy: inject it")
			seen["unmeshed"]++
			continue
		}
		require.Equal(t, e.From, e.Event.SourceLabels["pod"])
		require.Equal(t, "web", e.Event.SourceLabels["statefulset"])
		require.Equal(t, "db", e.Event.DestinationLabels["pod"])
		if seen[e.From]++; seen["web-0"] > 0 && seen["web-1"] > 0 && seen["unmeshed"] > 0 {
			break
		}
	}
	require.NoError(t, ctx.Err())

	gone := false
	for rows, err := range s.Top(ctx, &tappb.TopRequest{Every: durationpb.New(100 * time.Millisecond)}, 0) {
		if err != nil {
			continue
		}
		sources := map[string]bool{}
		for _, r := range rows.GetRows() {
			require.Equal(t, "db", r.GetDestination())
			sources[r.GetSource()] = true
		}
		if len(sources) == 2 && !gone {
			require.NoError(t, client.CoreV1().Pods("n").Delete(t.Context(), "web-1", metav1.DeleteOptions{}))
			gone = true
		}
		if gone && len(sources) == 1 {
			require.True(t, sources["web-0"])
			break
		}
	}
	require.NoError(t, ctx.Err())

	// A limit ends the sequence, when every pod has reached it.
	for range s.Watch(ctx, &tappb.WatchRequest{Limit: 2}, 1000) {
		continue
	}
	require.NoError(t, ctx.Err())
	// A missing resource ends the sequence.
	s.Resources = []Resource{{"statefulset", "n", "none"}}
	for _, err := range s.Watch(ctx, &tappb.WatchRequest{}, 1000) {
		require.ErrorContains(t, err, "not found")
	}
	require.NoError(t, ctx.Err())
}
