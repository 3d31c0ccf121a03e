package httplayer

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestEndpointAgeOfAFullConnection(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		const streams = 2
		h := newHost(ctx, streams)
		e := NewEndpoint(ctx, "10.0.0.1:80", WithHTTP2(), WithDialContext(h.network.DialContext), WithMaxConnAge(time.Minute))
		errs := make(chan error, 10)
		fill := func() {
			for range streams {
				go func() { errs <- get(ctx, e, "/hold") }()
			}
			synctest.Wait()
		}
		// It is full, for whatever reason: to be refused, or to wait in
		// Ready, is to find out that it is too old, too.
		fill()
		time.Sleep(2 * time.Minute)
		if err := get(ctx, e, "/"); err != nil { // or the successor was quick
			assert.Equal(t, e.full, err)
		}
		synctest.Wait()
		assert.NoError(t, layer.Poll[*http.Request, *http.Response](e))
		fill()
		assert.Equal(t, e.full, get(ctx, e, "/"))
		time.Sleep(2 * time.Minute)
		assert.NoError(t, e.Ready(ctx))
		assert.NoError(t, get(ctx, e, "/"))
		assert.Equal(t, 3, e.Describe().State.Get("connections"))
		h.release()
		for range 2 * streams {
			assert.NoError(t, <-errs)
		}
		synctest.Wait()
		assert.Equal(t, 1, e.Describe().State.Get("connections"))
	})
}

func TestEndpointAgeKeepsMaxConns(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		r := &roads{by: h.network.DialContext, takes: 700 * time.Millisecond}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithHTTP1(), WithMaxConns(1), WithIdleTimeout(time.Hour), WithDialContext(r.DialContext), WithMaxConnAge(time.Minute))
		require.NoError(t, get(ctx, e, "/"))
		time.Sleep(2 * time.Minute)
		held := make(chan error, 1)
		go func() { held <- get(ctx, e, "/hold") }()
		for range 30 { // before, while and after the successor is made
			synctest.Wait()
			assert.EqualValues(t, 1, h.held.Load())
			assert.Equal(t, e.full, get(ctx, e, "/"))
			assert.ErrorIs(t, layer.Poll[*http.Request, *http.Response](e), layer.ErrNotReady)
			assert.Equal(t, 1, e.Describe().State.Get("in_flight"))
			time.Sleep(100 * time.Millisecond)
		}
		ready := make(chan error, 1)
		go func() { ready <- e.Ready(ctx) }()
		synctest.Wait()
		at := time.Now()
		h.release()
		require.NoError(t, <-held)
		require.NoError(t, <-ready)
		require.NoError(t, get(ctx, e, "/"))
		assert.Equal(t, at, time.Now())
		dials, open, most := r.state()
		assert.Equal(t, []int{2, 1, 2}, []int{dials, open, most})
	})
}

func TestEndpointAgeUselessSuccessor(t *testing.T) {
	for name, spoil := range map[string]func(c *rawH2){
		"no streams": func(c *rawH2) { c.settings(0) },
		"going away": func(c *rawH2) {
			c.Write(slices.Concat(frameBytes(frameSettings, ""), frameBytes(frameGoAway, "\x00\x00\x00\x00\x00\x00\x00\x00")))
		},
		"no settings": func(*rawH2) {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				h := newHost(ctx, 0)
				r := &roads{}
				r.by = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if dials, _, _ := r.state(); dials != 2 {
						return h.network.DialContext(ctx, network, addr)
					}
					near, far := net.Pipe()
					go func() {
						defer far.Close()
						if c := newRawH2(far); c.preface() == nil {
							go spoil(c)
							c.drain()
						}
					}()
					return near, nil
				}
				e := NewEndpoint(ctx, "10.0.0.1:80", WithHTTP2(), WithDialContext(r.DialContext), WithMaxConnAge(time.Minute))
				require.NoError(t, get(ctx, e, "/"))
				first := e.h2.current.Load()
				time.Sleep(2 * time.Minute)
				for range 2 {
					require.NoError(t, get(ctx, e, "/"))
					synctest.Wait()
					assert.Same(t, first, e.h2.current.Load())
				}
				time.Sleep(10 * time.Second)
				assert.Contains(t, e.Describe().State.Get("successor_error"), map[bool]string{true: "takes no requests", false: "SETTINGS"}[name != "no settings"])
				dials, open, _ := r.state()
				assert.Equal(t, []int{2, 1}, []int{dials, open})
				require.NoError(t, get(ctx, e, "/"))
				synctest.Wait()
				assert.NotSame(t, first, e.h2.current.Load())
				assert.Nil(t, e.Describe().State.Get("successor_error"))
			})
		})
	}
}

func TestEndpointAgeGrace(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		h.srv.Handler = http.HandlerFunc(whoami)
		r := &roads{by: h.network.DialContext}
		life, end := context.WithCancel(ctx)
		e := NewEndpoint(life, "10.0.0.1:80", WithHTTP2(), WithDialContext(r.DialContext), WithMaxConnAge(time.Minute), WithMaxConnAgeGrace(10*time.Second))
		replace := func() {
			time.Sleep(2 * time.Minute)
			name(ctx, t, e)
			synctest.Wait()
		}
		short, long := openTalk(ctx, t, e), openTalk(ctx, t, e)
		replace()
		time.Sleep(9 * time.Second)
		short.say(t, "in time")
		short.end(t)
		long.say(t, "not yet")
		time.Sleep(time.Second)
		_, err := io.ReadAll(long.rsp.Body)
		assert.Error(t, err, "its time is up")
		assert.NotErrorIs(t, err, layer.ErrNotReady)
		synctest.Wait()
		assert.Equal(t, 1, e.Describe().State.Get("connections"))
		long.rsp.Body.Close()
		long.in.Close()
		assert.Equal(t, 0, e.Describe().State.Get("in_flight"))

		// After the end of the Endpoint its streams have all the time, as ever.
		last := openTalk(ctx, t, e)
		replace()
		end()
		time.Sleep(time.Minute)
		last.say(t, "no hurry")
		last.end(t)
		synctest.Wait()
		_, open, _ := r.state()
		assert.Zero(t, open)
	})
}

func TestEndpointAgeEndsWithItsContext(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, _ bool, protocol EndpointOption) {
		h := newHost(ctx, 0)
		s := &switched{network: &h.network}
		r := &roads{by: s.DialContext}
		life, end := context.WithCancel(ctx)
		e := NewEndpoint(life, "10.0.0.1:80", protocol, WithIdleTimeout(time.Hour), WithDialContext(r.DialContext),
			WithMaxConnAge(time.Minute), WithConnectTimeout(time.Hour))
		require.NoError(t, get(ctx, e, "/"))
		time.Sleep(2 * time.Minute)
		s.set(errSilence)
		require.NoError(t, get(ctx, e, "/"))
		synctest.Wait()
		require.Len(t, s.attempts(), 2)
		at := time.Now()
		end()
		synctest.Wait()
		assert.Equal(t, at, time.Now())
		_, open, _ := r.state()
		assert.Zero(t, open)
		assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrClosed)

		// What was made just too late is closed.
		life, end = context.WithCancel(ctx)
		s.set(nil)
		e = NewEndpoint(life, "10.0.0.1:80", protocol, WithIdleTimeout(time.Hour), WithDialContext(r.DialContext), WithMaxConnAge(time.Minute))
		require.NoError(t, get(ctx, e, "/"))
		time.Sleep(2 * time.Minute)
		r.takes = time.Second
		require.NoError(t, get(ctx, e, "/"))
		time.Sleep(time.Second / 2)
		end()
		time.Sleep(time.Second)
		_, open, _ = r.state()
		assert.Zero(t, open)
	})
}

func TestEndpointAgeOfAConnectionThatIsLost(t *testing.T) {
	// The old one is lost while its successor is in the making: it is that
	// one that all wait for, and no other.
	each(t, func(t *testing.T, ctx context.Context, h2 bool, protocol EndpointOption) {
		h := newHost(ctx, 0)
		srv := &holding{conns: make(map[net.Conn]bool)}
		h.srv.ConnState = srv.track
		r := &roads{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.1:80", protocol, WithIdleTimeout(time.Hour), WithDialContext(r.DialContext), WithMaxConnAge(time.Minute))
		require.NoError(t, get(ctx, e, "/"))
		time.Sleep(2 * time.Minute)
		r.takes = time.Second / 2
		require.NoError(t, get(ctx, e, "/"))
		time.Sleep(time.Second / 4)
		srv.cut()
		synctest.Wait()
		assert.Equal(t, 0, e.Describe().State.Get("connections"))
		require.NoError(t, get(ctx, e, "/"))
		time.Sleep(time.Second)
		dials, _, _ := r.state()
		if h2 {
			assert.Equal(t, 2, dials)
		}
		s := e.Describe().State
		assert.Equal(t, 0, s.Get("aged_out"), "it was lost, not replaced")
		assert.Equal(t, dials-1, s.Get("connections"))
		assert.Equal(t, 0, s.Get("in_flight"))
	})
}

func TestEndpointAgeOfAnUpgradedConnection(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		h.srv.Handler = http.HandlerFunc(switchToEcho)
		r := &roads{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithHTTP1(), WithMaxConns(1), WithIdleTimeout(time.Hour), WithDialContext(r.DialContext), WithMaxConnAge(time.Minute))
		require.NoError(t, get(ctx, e, "/"))
		time.Sleep(2 * time.Minute)
		req := request(t, http.MethodGet, "http://web/", "")
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		rsp, err := e.Call(ctx, req)
		require.NoError(t, err)
		synctest.Wait()
		both := rsp.Body.(io.ReadWriteCloser)
		time.Sleep(2 * time.Minute)
		say(both, "x")
		_, err = io.ReadFull(both, make([]byte, 1))
		require.NoError(t, err)
		s := e.Describe().State
		assert.Equal(t, []any{2, 1, 1}, []any{s.Get("connections"), s.Get("idle"), s.Get("in_flight")})
		assert.Equal(t, e.full, get(ctx, e, "/"), "the tunnel counts")
		require.NoError(t, both.Close())
		assert.NoError(t, get(ctx, e, "/"))
		synctest.Wait()
		_, open, _ := r.state()
		assert.Equal(t, 1, open)
	})
}

func TestEndpointAgeExceedsMaxConnsByOne(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		const conns = 3
		h := newHost(ctx, 0)
		r := &roads{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithHTTP1(), WithMaxConns(conns), WithIdleTimeout(time.Hour), WithDialContext(r.DialContext), WithMaxConnAge(time.Minute))
		errs := make(chan error, conns)
		hold := func() {
			for range conns {
				go func() { errs <- get(ctx, e, "/hold") }()
				synctest.Wait()
			}
			require.EqualValues(t, conns, h.held.Load())
			_, _, most := r.state()
			assert.LessOrEqual(t, most, conns+1)
			h.release()
			for range conns {
				require.NoError(t, <-errs)
			}
			synctest.Wait()
			_, open, _ := r.state()
			assert.Equal(t, conns, open)
		}
		for range 5 {
			hold()
			time.Sleep(2 * time.Minute)
		}
		assert.Equal(t, 4, e.Describe().State.Get("aged_out"), "one each time")
	})
}

func TestEndpointAgeBesideASilentServer(t *testing.T) {
	// The old connection has nothing left but streams that were reset, of
	// which the server says nothing.
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		rawHost(t, h, "10.0.0.2:80", func(n int, c *rawH2) {
			c.settings(10)
			for s := c.request(); s != 0; s = c.request() {
				if n > 0 {
					c.respond(s, "new")
				}
			}
		})
		r := &roads{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.2:80", WithHTTP2(), WithDialContext(r.DialContext), WithMaxConnAge(time.Minute))
		assert.ErrorIs(t, hasty(ctx, e), context.DeadlineExceeded)
		time.Sleep(2 * time.Minute)
		assert.ErrorIs(t, hasty(ctx, e), context.DeadlineExceeded)
		require.NoError(t, get(ctx, e, "/"))
		time.Sleep(patienceWithSilence - time.Millisecond)
		_, open, _ := r.state()
		assert.Equal(t, 2, open)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		_, open, _ = r.state()
		assert.Equal(t, 1, open)
		assert.Equal(t, 1, e.Describe().State.Get("connections"))
	})
}
