package h2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/net/http2"

	"github.com/gotower/gotower/internal/fdtest"
	"github.com/gotower/gotower/layer/httplayer/internal/enginetest"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// redialer is an http.RoundTripper that replaces its connection when it ends.
type redialer struct {
	addr string
	t    testing.TB

	mu sync.Mutex
	c  *ClientConn
}

func (d *redialer) RoundTrip(req *http.Request) (*http.Response, error) {
	for {
		d.mu.Lock()
		if d.c == nil || !d.c.Usable() {
			nc, err := net.Dial("tcp", d.addr)
			if err != nil {
				d.mu.Unlock()
				return nil, err
			}
			if d.c != nil {
				d.c.Drain()
			}
			d.c = NewClientConn(nc, &ClientConfig{})
			c := d.c
			d.t.Cleanup(func() {
				_ = c.Close()
				<-c.Done()
			})
		}
		c := d.c
		d.mu.Unlock()
		if c.Reserve() {
			rsp, err := c.RoundTrip(req)
			if errors.Is(err, message.ErrNotSent) {
				continue
			}
			return rsp, err
		}
		time.Sleep(time.Millisecond)
	}
}

// trackedBody reports whether it was closed.
type trackedBody struct {
	io.Reader
	open *atomic.Int64
	once sync.Once
}

func (b *trackedBody) Close() error {
	b.once.Do(func() { b.open.Add(-1) })
	return nil
}

// TestChaos cuts requests, responses and connections at random places on both
// sides of a proxy. Nothing may leak, and an exchange that was not cut succeeds.
func TestChaos(t *testing.T) {
	fdtest.Check(t)
	t.Cleanup(func() {
		assert.Eventually(t, func() bool { return message.BuffersInUse() == 0 }, testTimeout, time.Millisecond, "buffers are in use")
	})
	origin := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("do") {
		case "early":
			w.WriteHeader(http.StatusTeapot)
		case "abort":
			_, _ = io.CopyN(flusher{w}, r.Body, 1000)
			panic(http.ErrAbortHandler)
		case "unread":
			_, _ = w.Write(make([]byte, 100000))
		default:
			_, _ = io.Copy(w, r.Body)
		}
	})
	back := serve(t, message.ServerConfig{Exchange: handledBy(origin)})
	inner := &redialer{addr: back.addr, t: t}
	front := serve(t, message.ServerConfig{Exchange: inner.RoundTrip})
	outer := &redialer{addr: front.addr, t: t}

	var open, good, cut atomic.Int64
	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(15 * time.Millisecond):
			}
			for _, c := range [][]*ServerConn{front.open(), back.open()}[i%2] {
				if rand.IntN(3) == 0 {
					c.fail(errConnClosed)
				} else {
					c.Drain()
				}
			}
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 60 {
			cutHeaders(t, front.addr)
		}
	})
	for range 16 {
		wg.Go(func() {
			for range 60 {
				ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
				if rand.IntN(4) == 0 {
					time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
				}
				err := chaosExchange(ctx, outer, &open)
				if err == nil {
					good.Add(1)
				} else {
					cut.Add(1)
					assert.NoError(t, unexpected(ctx, err))
				}
				cancel()
			}
		})
	}
	wg.Wait()
	close(stop)
	killer.Wait()
	t.Logf("%d exchanges were complete, %d were cut", good.Load(), cut.Load())
	assert.NotZero(t, good.Load())
	eventually(t, func() bool { return open.Load() == 0 }, "all request bodies are closed")
	for _, d := range []*redialer{inner, outer} {
		eventually(t, func() bool { return d.c.Active() == 0 }, "all slots are free")
	}
	for _, s := range []*testServer{front, back} {
		eventually(t, func() bool {
			for _, c := range s.open() {
				c.mu.Lock()
				n := len(c.streams) + c.pending
				c.mu.Unlock()
				if n > 0 {
					return false
				}
			}
			return true
		}, "no stream is left")
	}
}

// cutHeaders ends a connection to a server, and one to a client, somewhere in a header block of several
// frames.
func cutHeaders(t *testing.T, addr string) {
	var fields bytes.Buffer
	fr := http2.NewFramer(&fields, nil)
	assert.NoError(t, fr.WriteSettings())
	assert.NoError(t, fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status: 200")}))
	for range 1 + rand.IntN(3) {
		assert.NoError(t, fr.WriteContinuation(1, false, block("a: "+strings.Repeat("x", rand.IntN(3000)))))
	}
	cut := fields.Bytes()[:rand.IntN(fields.Len()+1)]

	nc, err := net.Dial("tcp", addr)
	if !assert.NoError(t, err) {
		return
	}
	_, err = nc.Write(append([]byte(preface), cut...))
	assert.NoError(t, err)
	assert.NoError(t, nc.Close())

	ends := enginetest.NewPipe()
	c := NewClientConn(ends.Client, &ClientConfig{})
	go func() {
		_, _ = io.Copy(io.Discard, ends.Server)
	}()
	_, err = ends.Server.Write(cut)
	assert.NoError(t, err)
	assert.NoError(t, ends.Server.Close())
	<-c.Done()
}

// unexpected returns an error for which no fault is the reason.
func unexpected(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errWrongBody) {
		return fmt.Errorf("%w (%w)", err, ctx.Err())
	}
	return nil
}

var errWrongBody = errors.New("wrong body")

func chaosExchange(ctx context.Context, to http.RoundTripper, open *atomic.Int64) error {
	do := []string{"", "", "", "early", "abort", "unread"}[rand.IntN(6)]
	data := bytes.Repeat([]byte{byte(rand.Int())}, rand.IntN(1<<uint(rand.IntN(19))))
	req, err := http.NewRequestWithContext(ctx, "POST", "http://h/?do="+do, nil)
	if err != nil {
		return err
	}
	open.Add(1)
	req.Body = &trackedBody{Reader: bytes.NewReader(data), open: open}
	if rand.IntN(2) == 0 {
		req.ContentLength = int64(len(data))
	}
	if len(data) == 0 {
		req.ContentLength = -1
	}
	rsp, err := to.RoundTrip(req)
	if err != nil {
		return err
	}
	defer rsp.Body.Close()
	if rand.IntN(5) == 0 {
		_, err := io.CopyN(io.Discard, rsp.Body, int64(rand.IntN(10000)))
		return err
	}
	got, err := io.ReadAll(rsp.Body)
	if err == nil && do == "" && !bytes.Equal(got, data) {
		return fmt.Errorf("%w: %d bytes of %d", errWrongBody, len(got), len(data))
	}
	return err
}
