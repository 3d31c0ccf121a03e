package sidecar_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/tap/match"
)

// The access log, the metrics and tap agree on the status of each request.
func TestInboundStatusesAgree(t *testing.T) {
	waiting := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch status, err := strconv.Atoi(path.Base(r.URL.Path)); {
		case err == nil:
			w.WriteHeader(status)
		case r.URL.Path == "/broken":
			panic(http.ErrAbortHandler)
		default:
			waiting <- struct{}{}
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	app, log := server.Listener.Addr().String(), new(lines)
	tn := newTestProxy(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Settings.Inbound.Origin, c.Settings.Log.Access = fixed(app), settings.AccessJSON
	})
	tn.LogTo(log)
	conn, err := grpc.NewClient("passthrough:///"+tn.Tap, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	stream, err := pb.NewTapClient(conn).Observe(t.Context(), &pb.ObserveRequest{Limit: 100, Match: match.All()})
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)

	want := map[int]int{200: 2, 404: 1, 413: 1, 429: 1, 499: 1, 500: 1, 503: 1}
	for _, status := range []int{200, 200, 404, 413, 429, 500, 503} {
		got, _ := get(t, http.DefaultClient, fmt.Sprintf("http://%s/status/%d", tn.Inbound, status))
		require.Equal(t, status, got)
	}
	status, _ := get(t, http.DefaultClient, "http://"+tn.Inbound+"/broken")
	require.Equal(t, http.StatusBadGateway, status)
	leaveAfter(t, waiting, new(http.Transport), "http://"+tn.Inbound+"/wait")

	tapped, requests := make(map[int]int), 0
	for requests < 9 {
		e, err := stream.Recv()
		require.NoError(t, err)
		switch event := e.GetHttp(); {
		case event.GetResponseInit() != nil:
			tapped[int(event.GetResponseInit().GetHttpStatus())]++
		case event.GetResponseEnd() != nil:
			requests++
		}
	}
	logWant := maps.Clone(want)
	logWant[http.StatusBadGateway] = 1 // as linkerd's proxy, metrics and tap have an error and no response
	require.Equal(t, want, tapped, "tap")
	series := regexp.MustCompile(`(?m)^response_total\{[^}]*direction="inbound"[^}]*status_code="(\d+)"[^}]*\} (\d+)$`)
	tn.metrics(t, func(t require.TestingT, text string) {
		counted := make(map[int]int)
		for _, m := range series.FindAllStringSubmatch(text, -1) {
			status, _ := strconv.Atoi(m[1])
			n, _ := strconv.Atoi(m[2])
			counted[status] += n
		}
		require.Equal(t, want, counted, "metrics")
		require.Regexp(t, `(?m)^inbound_http_errors_total\{[^}]*\} 1$`, text)
	})
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		logged := make(map[int]int)
		for line := range strings.Lines(log.String()) {
			var entry struct {
				Status int `json:"status"`
			}
			assert.NoError(t, json.Unmarshal([]byte(line), &entry), line)
			logged[entry.Status]++
		}
		assert.Equal(t, logWant, logged, "access log")
	}, time.Minute, 10*time.Millisecond)
}

// leaveAfter sends a request, and cancels it after a server has received it.
func leaveAfter(t *testing.T, received <-chan struct{}, transport *http.Transport, url string) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-received
		time.Sleep(time.Second) // earlier, it would be a half-closed client of HTTP/1
		leave()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
	require.NoError(t, err)
	_, err = transport.RoundTrip(req) //nolint:bodyclose // it fails
	require.ErrorIs(t, err, context.Canceled)
	transport.CloseIdleConnections()
}

// A client that leaves before the response counts with the status 499, and not as an error of the
// proxy. Malformed requests are counted too.
func TestClientLeftMetrics(t *testing.T) {
	served := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		served <- struct{}{}
		<-r.Context().Done()
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	app := server.Listener.Addr().String()
	ctl := newScript(t)
	tn := newTestProxy(t, ctl.addr, func(c *sidecar.Config) {
		c.Settings.Inbound.Origin, c.Outbound.Origin = fixed(app), fixed(app)
	})
	for _, addr := range []string{tn.Inbound, tn.Addr} {
		for _, h2 := range []bool{false, true} {
			protocols := new(http.Protocols)
			protocols.SetHTTP1(!h2)
			protocols.SetUnencryptedHTTP2(h2)
			leaveAfter(t, served, &http.Transport{Protocols: protocols}, "http://"+addr+"/")
		}
		w := dialWire(t, addr)
		say(w, "GET / HTTP/1.1\r\nHost: a\r\nA : b\r\n\r\n")
		_, _ = io.Copy(io.Discard, w)
	}
	tn.metrics(t, func(t require.TestingT, text string) {
		for _, direction := range []string{"inbound", "outbound"} {
			require.Regexp(t, `(?m)^response_total\{[^}]*classification="success",[^}]*direction="`+direction+`"[^}]*status_code="499"[^}]*\} 2$`, text)
			require.Contains(t, text, direction+`_http_refused_total{status_code="400"} 1`+"\n")
			require.NotRegexp(t, `(?m)^`+direction+`_http_errors_total\{.*unexpected`, text)
		}
	})
}
