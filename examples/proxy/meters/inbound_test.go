package meters_test

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/meters"
)

// Names and labels are those of linkerd's proxy with a default policy.
func TestInboundRoute(t *testing.T) {
	m := meters.New(meters.Config{})
	answers := []func() (*http.Response, error){
		func() (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("hello"))}, nil
		},
		func() (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody}, nil
		},
		func() (*http.Response, error) { return nil, errors.New("broken") },
	}
	n := 0
	svc := m.InboundRoute(*byDefault("all-unauthenticated"), netip.MustParseAddrPort("10.0.0.1:8080"))(
		answering{call: func(r *http.Request) (*http.Response, error) {
			n++
			_, err := io.Copy(io.Discard, r.Body)
			require.NoError(t, err)
			return answers[n-1]()
		}})
	for range answers {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://web/", strings.NewReader("question"))
		require.NoError(t, err)
		body := req.Body
		if rsp, err := svc.Call(t.Context(), req); err == nil {
			_, err = io.Copy(io.Discard, rsp.Body)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		}
		require.Equal(t, body, req.Body, "the caller's request is not changed")
	}
	const labels = `parent_group="",parent_kind="default",parent_name="all-unauthenticated",parent_port="8080",` +
		`route_group="",route_kind="default",route_name="default"`
	require.Equal(t, []string{`inbound_http_requests_total{` + labels + `} 3`}, lines(t, m, "inbound_http_requests_total"))
	require.ElementsMatch(t, []string{
		`inbound_http_statuses_total{` + labels + `,status=""} 1`,
		`inbound_http_statuses_total{` + labels + `,status="200"} 1`,
		`inbound_http_statuses_total{` + labels + `,status="404"} 1`,
	}, lines(t, m, "inbound_http_statuses_total"))
	for _, name := range []string{"request", "response"} {
		name = "inbound_http_" + name + "_duration_seconds_count"
		require.Equal(t, []string{name + `{` + labels + `} 3`}, lines(t, m, name))
	}
}

// A request that panics counts.
func TestInboundRoutePanic(t *testing.T) {
	m := meters.New(meters.Config{})
	svc := m.InboundRoute(*byDefault("deny"), netip.MustParseAddrPort("10.0.0.1:80"))(
		answering{call: func(*http.Request) (*http.Response, error) { panic("broken") }})
	require.Panics(t, func() { _, _ = svc.Call(t.Context(), &http.Request{}) })
	require.Len(t, lines(t, m, "inbound_http_statuses_total"), 1)
}

func TestTransferCost(t *testing.T) {
	m := meters.New(meters.Config{})
	for locality, n := range map[string]float64{"Local": 1, "remote": 2, "": 3, "unknown": 4} {
		labels := meters.Labels{}
		if locality != "" {
			labels["dst_zone_locality"] = locality
		}
		instruments := m.Transport(meters.Outbound, meters.Destination, labels)
		instruments.Read.Add(n)
		instruments.Written.Add(10 * n)
	}
	m.Transport(meters.Outbound, meters.Source, nil).Read.Add(100)
	m.Transport(meters.Inbound, meters.Destination, nil).Read.Add(100)
	const name = "outbound_tcp_transfer_cost_bytes_total"
	require.ElementsMatch(t, []string{
		name + `{op="Recv",zone_locality="Local"} 1`, name + `{op="Send",zone_locality="Local"} 10`,
		name + `{op="Recv",zone_locality="Remote"} 2`, name + `{op="Send",zone_locality="Remote"} 20`,
		name + `{op="Recv",zone_locality="Unknown"} 7`, name + `{op="Send",zone_locality="Unknown"} 70`,
	}, lines(t, m, name))
}
