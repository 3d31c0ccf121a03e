package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/examples/tapctl/cluster"
)

// A client identity is obtained for one pod and used for all. The end of this pod neither ends
// the renewal nor makes a failure permanent.
func TestIdentityOutlivesPod(t *testing.T) {
	t.Parallel()
	const server, client = "linkerd-identity.linkerd.cluster.local", "tap.linkerd.serviceaccount.identity.linkerd.cluster.local"
	authority, err := ca.New("cluster.local")
	require.NoError(t, err)
	authority.Lifetime = time.Second
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serving, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- ca.Serve(serving, l, authority, func(context.Context, string, []byte) error { return nil }, server)
	}()
	t.Cleanup(func() { stop(); assert.NoError(t, <-served) })

	var tokens atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/serviceaccounts/tap/token"):
			tokens.Add(1)
			_, _ = io.WriteString(w, `{"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "status": {"token": "t"}}`)
		case strings.HasSuffix(r.URL.Path, "/configmaps/linkerd-identity-trust-roots"):
			_ = json.NewEncoder(w).Encode(map[string]any{
				"kind": "ConfigMap", "apiVersion": "v1", "data": map[string]string{"ca-bundle.crt": string(authority.TrustAnchors())},
			})
		default:
			_, _ = io.WriteString(w, `{"kind": "PodList", "apiVersion": "v1", "items": [{"status":
				{"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}}]}`)
		}
	}))
	t.Cleanup(api.Close)
	config := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "%s"}}]
users: [{name: a}]
`, api.URL), 0o600))
	c, err := cluster.Open(cluster.Options{Kubeconfig: config, MinRefresh: 10 * time.Millisecond})
	require.NoError(t, err)
	p := &pods{
		Source: cluster.Source{Cluster: c}, controlPlane: "linkerd", identities: map[string]*cluster.Identity{},
		warn: func(err error) { assert.NoError(t, err) },
	}
	t.Cleanup(p.Close)
	pod := cluster.Pod{TapClient: client, Authority: l.Addr().String(), AuthorityName: server}

	other := pod
	other.TapClient = "tap.linkerd.serviceaccount.identity.other.cluster.local"
	_, err = c.Identify(t.Context(), "linkerd", other)
	require.EqualError(t, err, "its control plane is in the namespace other and not in linkerd (-L)")
	require.Zero(t, tokens.Load(), "a pod does not choose the receiver of a token")

	ctx, end := context.WithCancel(t.Context())
	end()
	require.Nil(t, p.identify(ctx, pod))
	ctx, end = context.WithCancel(t.Context())
	defer end()
	require.NotNil(t, p.identify(ctx, pod))
	end()
	before := tokens.Load()
	require.Eventually(t, func() bool { return tokens.Load() > before }, time.Minute, 10*time.Millisecond, "the certificate is renewed")
}
