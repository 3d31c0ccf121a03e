package k8s

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gotower/gotower/internal/kubetest"
	"github.com/gotower/gotower/resolve"
)

// A Service at a kube-apiserver with etcd.
func TestRealAPIServer(t *testing.T) {
	server := kubetest.New(t)
	ctx, admin := t.Context(), server.Client(t, kubetest.Admin)
	r := New(admin, WithBackoff(resolve.Backoff{Min: 50 * time.Millisecond, Max: 400 * time.Millisecond, Jitter: 0.1}))
	services, endpointSlices := admin.CoreV1().Services("default"), admin.DiscoveryV1().EndpointSlices("default")

	// The Service of the API server itself.
	own := listen(t, r, "kubernetes.default.svc.cluster.local:443")
	own.until(t, "replace 10.9.8.7:"+server.Port)
	own.stop(t)

	web := listen(t, r, "web.default:80")
	named := listen(t, r, "web.default:http")
	both := func(want string) { t.Helper(); web.until(t, want); named.until(t, want) }
	both("does not exist")
	service := svc("web", 80)
	service.Spec.Ports[0].Name, service.Spec.ClusterIP = "http", ""
	service, err := services.Create(ctx, service, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, []corev1.IPFamily{corev1.IPv4Protocol}, service.Spec.IPFamilies)
	both("empty")

	a := slice("web-a", "web", 8080, at("10.0.0.1"), at("10.0.0.2", unready))
	a.Ports[0].Name = new("http")
	_, err = endpointSlices.Create(ctx, a, metav1.CreateOptions{})
	require.NoError(t, err)
	both("replace 10.0.0.1:8080")
	draining(&a.Endpoints[0])
	_, err = endpointSlices.Update(ctx, a, metav1.UpdateOptions{})
	require.NoError(t, err)
	b := slice("web-b", "web", 8080, at("10.0.0.2"), at("10.0.0.3"))
	b.Ports[0].Name, b.Ports[0].AppProtocol = new("http"), new(h2c)
	_, err = endpointSlices.Create(ctx, b, metav1.CreateOptions{})
	require.NoError(t, err)
	both("replace 10.0.0.2:8080/h2 10.0.0.3:8080/h2")
	require.NoError(t, endpointSlices.Delete(ctx, "web-a", metav1.DeleteOptions{}))

	// The API server dies and comes back; the set stays, and is followed again.
	server.Kill(t)
	web.until(t, "refused")
	named.until(t, "refused")
	server.Start(t)
	both("replace 10.0.0.2:8080/h2 10.0.0.3:8080/h2")
	b.Endpoints = b.Endpoints[:1]
	_, err = endpointSlices.Update(ctx, b, metav1.UpdateOptions{})
	require.NoError(t, err)
	both("replace 10.0.0.2:8080/h2")

	require.NoError(t, services.Delete(ctx, "web", metav1.DeleteOptions{}))
	both("does not exist")
	web.stop(t)
	named.stop(t)
	require.Zero(t, r.watchers.Len())
}

// The error names the missing right, and the stream recovers with it.
func TestRealAPIServerRights(t *testing.T) {
	server := kubetest.New(t)
	ctx, admin := t.Context(), server.Client(t, kubetest.Admin)
	guest := New(server.Client(t, kubetest.Guest), WithBackoff(resolve.Backoff{Min: 50 * time.Millisecond, Max: 400 * time.Millisecond}))
	f := listen(t, guest, "kubernetes.default:https")
	f.until(t, "needs a Role in namespace default with the verbs list and watch on the resource")
	meta := metav1.ObjectMeta{Name: "guest", Namespace: "default"}
	_, err := admin.RbacV1().Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admin.RbacV1().RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "guest"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "guest"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.until(t, "replace 10.9.8.7:"+server.Port)
	f.stop(t)

	stranger := listen(t, New(server.Client(t, "of-nobody")), "kubernetes.default:443")
	stranger.until(t, "does not accept the client's credentials")
	stranger.stop(t)
}

// listener records the items of a stream, in real time.
type listener struct {
	cancel context.CancelFunc
	items  chan string
}

func listen(t *testing.T, r resolve.Resolver, target string) *listener {
	ctx, cancel := context.WithCancel(t.Context())
	l := &listener{cancel: cancel, items: make(chan string, 1000)}
	go func() {
		defer close(l.items)
		for u, err := range r.Resolve(ctx, target) {
			text := words(u)
			if err != nil {
				text = err.Error()
			}
			l.items <- text
		}
	}()
	return l
}

// until waits for what contains want.
func (l *listener) until(t *testing.T, want string) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case text := <-l.items:
			t.Log(text)
			if strings.Contains(text, want) {
				return
			}
		case <-timeout:
			require.Fail(t, "not yielded", want)
		}
	}
}

// stop ends the stream, which must not take long.
func (l *listener) stop(t *testing.T) {
	l.cancel()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case _, more := <-l.items:
			if !more {
				return
			}
		case <-timeout:
			require.Fail(t, "the stream did not end")
		}
	}
}
