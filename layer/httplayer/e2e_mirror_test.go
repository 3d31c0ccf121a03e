package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// witness is a server that records its requests and then responds as configured.
type witness struct {
	then http.HandlerFunc

	mu   sync.Mutex
	came []string
}

func (s *witness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	s.mu.Lock()
	s.came = append(s.came, fmt.Sprintf("%s %s %s %d %q %v %v %v",
		r.Method, r.Host, r.URL, r.ContentLength, body, r.Header, r.Trailer, err))
	s.mu.Unlock()
	if s.then != nil {
		s.then(w, r)
		return
	}
	say(w, "got "+string(body))
}

func (s *witness) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.came)
}

// mirrored is a stack of one Mirror over two servers.
func mirrored(t *testing.T, protocol EndpointOption, primary, shadow http.Handler) Service {
	t.Helper()
	to := endpoint(t, serve(t, shadow), protocol)
	return NewStack().Mirror(t.Context(), to, Editor{}, layer.MirrorPolicy[*http.Request]{}).
		Service(endpoint(t, serve(t, primary), protocol))
}

// The mirror receives the same request as the primary.
func TestE2EMirrorCopies(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		for name, change := range map[string]func(*http.Request){
			"no body":      func(r *http.Request) { r.Body, r.ContentLength, r.GetBody = nil, 0, nil },
			"a length":     func(*http.Request) {},
			"chunks":       func(r *http.Request) { r.ContentLength, r.GetBody = -1, nil },
			"trailers":     func(r *http.Request) { r.ContentLength, r.Trailer = -1, http.Header{"Sum": {"5"}} },
			"another host": func(r *http.Request) { r.Host = "elsewhere" },
			"at the cap": func(r *http.Request) {
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(long)), int64(len(long))
			},
			"many fields":   func(r *http.Request) { r.Header = http.Header{"A": {"1", "2"}, "Authorization": {"x"}} },
			"an odd method": func(r *http.Request) { r.Method = "PROPFIND" },
		} {
			t.Run(name, func(t *testing.T) {
				primary, shadow := &witness{}, &witness{}
				svc := mirrored(t, protocol, primary, shadow)
				req := request(t, http.MethodPost, "http://web/a?b=c", "hello")
				change(req)
				rsp, err := svc.Call(t.Context(), req)
				require.NoError(t, err)
				assert.True(t, strings.HasPrefix(read(t, rsp), "got "))
				require.Eventually(t, func() bool { return len(shadow.all()) == 1 }, 20*time.Second, time.Millisecond)
				assert.Equal(t, primary.all(), shadow.all())
			})
		}
	})
}

var long = strings.Repeat("x", 64<<10)

// A client aborts its request, a body is too large, or the server does not read it. No copy
// is sent, and the response does not change.
func TestE2EMirrorIncompleteBody(t *testing.T) {
	broken := errors.New("the client broke off")
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		shadow := &witness{}
		svc := mirrored(t, protocol, &witness{}, shadow)
		for _, length := range []int64{int64(len(long)) + 1, -1} {
			req := request(t, http.MethodPost, "http://web/", "")
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader(long+"x")), length
			rsp, err := svc.Call(t.Context(), req)
			require.NoError(t, err)
			assert.Equal(t, "got "+long+"x", read(t, rsp))
		}
		req := request(t, http.MethodPost, "http://web/", "")
		req.Body, req.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("ab"), brokenReader{broken})), -1
		_, err := svc.Call(t.Context(), req)
		require.ErrorIs(t, err, broken)
		// Copies of earlier requests would arrive before this one.
		rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/last", ""))
		require.NoError(t, err)
		read(t, rsp)
		require.Eventually(t, func() bool { return len(shadow.all()) > 0 }, 20*time.Second, time.Millisecond)
		require.Len(t, shadow.all(), 1)
		assert.Contains(t, shadow.all()[0], "/last")
	})
}

// A mirror that hangs, fails or rejects requests does not affect the client of a proxy.
func TestE2EMirrorBehindProxy(t *testing.T) {
	for name, shadow := range map[string]http.HandlerFunc{
		"hangs":  stalls,
		"breaks": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"fails":  unavailable,
		"talks without an end": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				say(w, long)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			to := &witness{then: shadow}
			svc := NewStack().
				Mirror(ctx, endpoint(t, serve(t, to)), Editor{}, layer.MirrorPolicy[*http.Request]{Timeout: time.Minute}).
				Service(endpoint(t, serve(t, &witness{})))
			addr := serve(t, Handler(svc))
			for _, h2 := range []bool{false, true} {
				for i := range 5 {
					rsp, err := client(t, h2).Post("http://"+addr, "text/plain", strings.NewReader(long[:i]))
					require.NoError(t, err)
					assert.Equal(t, "got "+long[:i], read(t, rsp))
				}
			}
			require.Eventually(t, func() bool { return len(to.all()) == 10 }, 20*time.Second, time.Millisecond)
			cancel()
		})
	}
}

// A client that expects 100 Continue receives it from the primary. The mirror receives the
// whole body.
func TestE2EMirrorExpectContinue(t *testing.T) {
	shadow := &witness{}
	primary := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		pipe(w, r.Body)
	})
	svc := mirrored(t, WithHTTP1(), primary, shadow)
	for path, want := range map[string]int{"/no": http.StatusForbidden, "/yes": http.StatusOK} {
		req := request(t, http.MethodPost, "http://web"+path, "hello")
		req.Header.Set("Expect", "100-continue")
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		assert.Equal(t, want, rsp.StatusCode)
		read(t, rsp)
	}
	require.Eventually(t, func() bool { return len(shadow.all()) > 0 }, 20*time.Second, time.Millisecond)
	require.Len(t, shadow.all(), 1)
	assert.Contains(t, shadow.all()[0], "/yes")
	assert.NotContains(t, shadow.all()[0], "Expect")
}
