package httplayer

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMaxIdleConns(t *testing.T) {
	const conns = 3
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { say(w, "hello") }))
	for name, tt := range map[string]struct {
		opts []EndpointOption
		want int
	}{
		"default":  {nil, conns},
		"no bound": {[]EndpointOption{WithMaxIdleConns(-1)}, conns},
		"one":      {[]EndpointOption{WithMaxIdleConns(1)}, 1},
		"none":     {[]EndpointOption{WithMaxIdleConns(0)}, 0},
		"enough":   {[]EndpointOption{WithMaxIdleConns(conns)}, conns},
	} {
		t.Run(name, func(t *testing.T) {
			e := endpoint(t, addr, append(tt.opts, WithHTTP1())...)
			for range 2 { // the second time some are there
				var open []*http.Response
				for range conns {
					rsp, err := e.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
					require.NoError(t, err)
					open = append(open, rsp)
				}
				for _, rsp := range open {
					assert.Equal(t, "hello", read(t, rsp))
				}
				state := e.Describe().State
				assert.Equal(t, tt.want, state.Get("connections"))
				assert.Zero(t, state.Get("in_flight"))
			}
		})
	}
}

// A client that pauses its body does not delay the error of an attempt, its time limit, or
// the next attempt.
func TestEndpointClientPausesBody(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		silent bool // the endpoint does not close
		svc    func(Service) Service
		status int
	}{
		"error":   {false, func(s Service) Service { return s }, http.StatusBadGateway},
		"timeout": {true, func(s Service) Service { return NewStack().Timeout(100 * time.Millisecond).Service(s) }, http.StatusGatewayTimeout},
		"retry":   {false, func(s Service) Service { return NewStack().Retry(RetryPolicy{}).Service(s) }, http.StatusNoContent},
	} {
		t.Run(name, func(t *testing.T) {
			var tries atomic.Int32
			up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				again := tries.Add(1) > 1
				if _, err := io.ReadFull(r.Body, make([]byte, 3)); err != nil {
					return // it was out of time
				}
				conn, _, err := http.NewResponseController(w).Hijack()
				if !assert.NoError(t, err) {
					return
				}
				defer conn.Close()
				switch {
				case again:
					_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
				case tt.silent:
					_, _ = io.Copy(io.Discard, conn)
				}
			}))
			conn, err := net.Dial("tcp", serve(t, Handler(tt.svc(endpoint(t, up)))))
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
			_, err = io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: web\r\nContent-Length: 1000\r\n\r\nabc")
			require.NoError(t, err)
			rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			rsp.Body.Close()
			require.Equal(t, tt.status, rsp.StatusCode)
		})
	}
}
