package httplayer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/internal/fdtest"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// TestChaos sends requests through a proxy while the clients and the server abort them
// at random, over each pair of HTTP/1.1 and HTTP/2. It exists for the race detector: bodies are
// in flight in both directions when they are closed. A request that nobody aborts must
// succeed, with the right body and trailers. With GOTOWER_TESTS=full it sends 520 000 requests.
func TestChaos(t *testing.T) {
	requests := 6000
	if os.Getenv("GOTOWER_TESTS") == "full" {
		requests = 520_000
	}
	// More threads than CPUs: the kernel then interrupts goroutines at any instruction, also
	// between two that are usually executed without a pause.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8 * runtime.NumCPU()))
	fdtest.Check(t)
	before := message.BuffersInUse() // of other tests, which may leave response bodies open
	t.Cleanup(func() {
		assert.Eventually(t, func() bool { return message.BuffersInUse() <= before }, patience, time.Millisecond, "buffers are in use")
	})
	for _, downstream := range []string{"HTTP/1.1", "HTTP/2"} {
		for _, upstream := range []string{"HTTP/1.1", "HTTP/2"} {
			t.Run(downstream+" to "+upstream, func(t *testing.T) {
				began := time.Now()
				c := newChaos(t, downstream, upstream)
				c.run(t, requests/4)
				t.Logf("%d requests in %v: %d complete, %d aborted", requests/4, time.Since(began).Round(time.Millisecond), c.complete.Load(), c.aborted.Load())
				assert.NotZero(t, c.complete.Load())
				assert.NotZero(t, c.aborted.Load())
				assert.Eventually(t, func() bool { return c.bodies.Load() == 0 }, patience, time.Millisecond, "request bodies are open")
			})
		}
	}
}

// chaos is a server, a proxy and a client, and the counts of their requests.
type chaos struct {
	client            *Endpoint
	bodies            atomic.Int64 // request bodies that are open
	complete, aborted atomic.Int64
}

func newChaos(t *testing.T, downstream, upstream string) *chaos {
	versions := map[string]EndpointOption{"HTTP/1.1": WithHTTP1(), "HTTP/2": WithHTTP2()}
	mux := http.NewServeMux() // a handler that is not a Handler, with a Server
	mux.HandleFunc("/", chaosOrigin)
	origin := servingBy(t, mux, WithMaxStreamResets(1<<30))
	proxy := servingBy(t, Handler(endpoint(t, origin.addr, versions[upstream]), WithLogger(nil)), WithMaxStreamResets(1<<30))
	return &chaos{client: endpoint(t, proxy.addr, versions[downstream])}
}

// run sends n requests, 24 of them at a time.
func (c *chaos) run(t *testing.T, n int) {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for range 24 {
		wg.Go(func() {
			for left.Add(-1) >= 0 && !t.Failed() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				intact, err := c.exchange(ctx, cancel)
				switch {
				case intact && err != nil:
					assert.NoError(t, err)
				case err != nil:
					c.aborted.Add(1)
				default:
					c.complete.Add(1)
				}
				assert.NotErrorIs(t, err, context.DeadlineExceeded)
				cancel()
			}
		})
	}
	wg.Wait()
}

// chaosBody is a request body that arrives in parts, and may fail.
type chaosBody struct {
	io.Reader
	part   int
	fails  int // bytes after which it fails; -1 for never
	open   *atomic.Int64
	closed atomic.Bool
}

var errChaosBody = errors.New("the body fails")

func (b *chaosBody) Read(p []byte) (int, error) {
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if b.fails == 0 {
		return 0, errChaosBody
	}
	p = p[:min(len(p), b.part)]
	if b.fails > 0 {
		p = p[:min(len(p), b.fails)]
	}
	n, err := b.Reader.Read(p)
	b.fails -= min(n, max(b.fails, 0))
	if rand.IntN(4) == 0 {
		runtime.Gosched()
	}
	return n, err
}

func (b *chaosBody) Close() error {
	if !b.closed.Swap(true) {
		b.open.Add(-1)
	}
	return nil
}

// exchange sends a request and reads the response. The result intact reports that neither side aborts
// the request, so that an error is a defect.
func (c *chaos) exchange(ctx context.Context, cancel func()) (intact bool, err error) {
	do := []string{"echo", "echo", "read", "early", "reset", "reset read", "reset write", "cut", "unread"}[rand.IntN(9)]
	data := bytes.Repeat([]byte{'a' + byte(rand.IntN(26))}, rand.IntN(1<<rand.IntN(17)))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://web/?do="+strings.ReplaceAll(do, " ", "+"), nil)
	if err != nil {
		return true, err
	}
	intact = do == "echo" || do == "read" || do == "unread" || do == "early"
	grpc := rand.IntN(3) == 0
	if grpc {
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("TE", "trailers")
	}
	if len(data) > 0 {
		body := &chaosBody{Reader: bytes.NewReader(data), part: len(data)>>rand.IntN(6) + 1, fails: -1, open: &c.bodies}
		c.bodies.Add(1)
		req.Body, req.ContentLength = body, -1
		if rand.IntN(2) == 0 {
			req.ContentLength = int64(len(data))
		}
		if rand.IntN(8) == 0 {
			body.fails = rand.IntN(len(data))
			intact = false
		}
	}
	if rand.IntN(6) == 0 {
		intact = false
		time.AfterFunc(time.Duration(rand.IntN(2000))*time.Microsecond, cancel)
	}
	rsp, err := c.client.Call(ctx, req)
	if err != nil {
		if req.Body != nil && errors.Is(err, layer.ErrNotReady) {
			_ = req.Body.Close()
		}
		return intact, err
	}
	defer rsp.Body.Close()
	if rand.IntN(6) == 0 {
		_, err := io.CopyN(io.Discard, rsp.Body, int64(rand.IntN(10_000)))
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return intact, err
	}
	got, err := io.ReadAll(rsp.Body)
	if err != nil {
		return intact, err
	}
	return intact, checkChaos(do, data, got, rsp)
}

const chaosUnread = 20_000 // bytes of the response to a body that is not read

// checkChaos returns an error if the complete response rsp with the body got is not the right one.
func checkChaos(do string, data, got []byte, rsp *http.Response) error {
	switch {
	case rsp.StatusCode >= http.StatusInternalServerError:
		return fmt.Errorf("%s: status %d", do, rsp.StatusCode)
	case do == "echo" && !bytes.Equal(got, data):
		return fmt.Errorf("%s: %d bytes of %d", do, len(got), len(data))
	case do == "read" && string(got) != strconv.Itoa(len(data)):
		return fmt.Errorf("%s: %q instead of %d", do, got, len(data))
	case do == "unread" && len(got) != chaosUnread:
		return fmt.Errorf("%s: %d bytes of %d", do, len(got), chaosUnread)
	case do == "echo" && rsp.Trailer.Get("X-Sum") != strconv.Itoa(len(data)):
		return fmt.Errorf("%s: trailers %v", do, rsp.Trailer)
	}
	return nil
}

// chaosOrigin responds, or aborts the request at the point that its query names.
func chaosOrigin(w http.ResponseWriter, r *http.Request) {
	fullDuplex(w)
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		w.Header().Set("Content-Type", "application/grpc")
		defer w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	}
	switch r.URL.Query().Get("do") {
	case "read":
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		say(w, strconv.FormatInt(n, 10))
	case "early":
		w.WriteHeader(http.StatusTeapot)
	case "unread":
		_, _ = w.Write(make([]byte, chaosUnread))
	case "reset":
		panic(http.ErrAbortHandler)
	case "reset read":
		_, _ = io.CopyN(io.Discard, r.Body, int64(rand.IntN(5000)))
		panic(http.ErrAbortHandler)
	case "reset write":
		_, _ = io.CopyN(w, r.Body, int64(rand.IntN(5000)))
		flush(w)
		panic(http.ErrAbortHandler)
	case "cut":
		w.Header().Set("Content-Length", "1000000")
		pipe(w, r.Body)
		panic(http.ErrAbortHandler)
	default:
		flush(w)
		n, err := io.Copy(w, r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set(http.TrailerPrefix+"X-Sum", strconv.FormatInt(n, 10))
	}
}
