package sidecar_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/tap/tappb"
)

// The page is open while the proxy stops. Its streams end, or the proxy's cleanup and goleak would
// notice.
func TestPageShutdown(t *testing.T) {
	ctl, _ := serveController(t, "127.0.0.1:0", at(webName, backend(t, "a")))
	tn := newTestProxy(t, ctl)
	status, page := get(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http://"+tn.Admin+"/")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, page, "<!doctype html>")

	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, "http://"+tn.Admin+"/view/live", http.NoBody)
	require.NoError(t, err)
	stream, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { stream.Body.Close() })
	require.Equal(t, http.StatusOK, stream.StatusCode)
	line, err := bufio.NewReader(stream.Body).ReadString('\n')
	require.NoError(t, err)
	require.NotEmpty(t, strings.TrimSpace(line))
}

func TestTapExplainsRequests(t *testing.T) {
	ctl, _ := serveController(t, "127.0.0.1:0", at(webName, backend(t, "a"), backend(t, "b")))
	tn := newTestProxy(t, ctl)
	conn, err := grpc.NewClient("passthrough:///"+tn.Tap, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()

	stream, err := tappb.NewTapClient(conn).Watch(t.Context(), &tappb.WatchRequest{Limit: 1, Explain: true})
	require.NoError(t, err)
	_, err = stream.Header() // it watches
	require.NoError(t, err)
	status, _ := get(t, tn.client(t), "http://"+webName+"/")
	require.Equal(t, http.StatusOK, status)
	var names []string
	for names == nil {
		m, err := stream.Recv()
		require.NoError(t, err)
		for _, n := range m.GetEvent().GetExplanation() {
			names = append(names, n.GetName())
		}
	}
	require.Subset(t, names, []string{"profiles", "balance"})

	described, err := tappb.NewTapClient(conn).Describe(t.Context(), &tappb.DescribeRequest{})
	require.NoError(t, err)
	require.NotEmpty(t, described.GetNodes())
	require.Equal(t, "proxy", described.GetNodes()[0].GetName())
}
