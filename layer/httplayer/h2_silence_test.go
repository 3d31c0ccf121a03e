package httplayer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// halfDead answers nothing on its first connection, beyond what chatter says,
// and every request on the others.
func halfDead(t *testing.T, h *host, streams int, chatter func(c *rawH2)) {
	t.Helper()
	rawHost(t, h, "10.0.0.2:80", func(n int, c *rawH2) {
		c.settings(streams)
		if n == 0 {
			go chatter(c)
			c.drain()
		}
		for s := c.request(); s != 0; s = c.request() {
			c.respond(s, "new")
		}
	})
}

// hasty is a request that is given up after a second.
func hasty(ctx context.Context, e *Endpoint) error {
	defer synctest.Wait() // net/http counts a stream twice while it is being reset
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return get(ctx, e, "/")
}

// A connection that leads nowhere is full of requests that were given up. It is
// replaced long before TCP ends it.
func TestSilentH2ConnectionIsReplaced(t *testing.T) {
	for name, streams := range map[string]int{"full": 2, "not full": 100} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				h := newHost(ctx, 0)
				halfDead(t, h, streams, func(*rawH2) {})
				r := &roads{by: h.network.DialContext}
				e := NewEndpoint(ctx, "10.0.0.2:80", WithHTTP2(), WithDialContext(r.DialContext))
				for range 2 {
					require.ErrorIs(t, hasty(ctx, e), context.DeadlineExceeded)
				}
				began := time.Now() // whoever looks first starts the clock
				for hasty(ctx, e) != nil {
					time.Sleep(time.Second / 2)
				}
				assert.InDelta(t, patienceWithSilence, time.Since(began), float64(2*time.Second))
				dials, _, _ := r.state()
				assert.Equal(t, 2, dials)
				time.Sleep(2 * patienceWithSilence)
				synctest.Wait()
				_, open, _ := r.state()
				assert.Equal(t, 1, open)
			})
		})
	}
}

// The handlers of a server hang first, while it answers every PING; then it dies.
func TestSilentH2ConnectionThatHadAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		rawHost(t, h, "10.0.0.2:80", func(n int, c *rawH2) {
			c.settings(100)
			for n == 0 {
				kind, flags, _, payload, err := c.next()
				if err != nil {
					return
				}
				if kind == framePing && flags&flagAck == 0 {
					c.frame(framePing, flagAck, 0, payload)
				}
			}
			for s := c.request(); s != 0; s = c.request() {
				c.respond(s, "new")
			}
		})
		e := NewEndpoint(ctx, "10.0.0.2:80", WithHTTP2(), WithDialContext(h.network.DialContext))
		began := time.Now() // net/http sends no other PING before there is a response
		for hasty(ctx, e) != nil {
			require.Less(t, time.Since(began), 2*patienceWithSilence)
			time.Sleep(time.Second)
		}
		assert.Greater(t, time.Since(began), patienceWithSilence)
	})
}

// Whoever waits for room hears of it, too.
func TestSilentH2ConnectionUnderReady(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		halfDead(t, h, 2, func(*rawH2) {})
		e := NewEndpoint(ctx, "10.0.0.2:80", WithHTTP2(), WithDialContext(h.network.DialContext))
		for range 2 {
			require.ErrorIs(t, hasty(ctx, e), context.DeadlineExceeded)
		}
		began := time.Now()
		require.NoError(t, e.Ready(ctx))
		assert.InDelta(t, patienceWithSilence, time.Since(began), float64(time.Second))
		require.NoError(t, hasty(ctx, e))
	})
}

// A server that says anything is there, whatever it leaves unanswered.
func TestH2ConnectionOfAServerThatSaysSomething(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		const talks = 3 * time.Minute
		halfDead(t, h, 2, func(c *rawH2) {
			for range talks / (20 * time.Second) {
				time.Sleep(20 * time.Second)
				c.frame(frameWindowUpdate, 0, 0, []byte{0, 0, 0, 1})
			}
		})
		r := &roads{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.2:80", WithHTTP2(), WithDialContext(r.DialContext))
		for range 2 {
			require.ErrorIs(t, hasty(ctx, e), context.DeadlineExceeded)
		}
		for began := time.Now(); time.Since(began) < talks; time.Sleep(time.Second) {
			require.ErrorIs(t, hasty(ctx, e), layer.ErrNotReady)
		}
		dials, _, _ := r.state()
		assert.Equal(t, 1, dials)
		require.NoError(t, e.Ready(ctx))
	})
}

// An Endpoint that has ended does not keep a connection for a server that stays
// silent, whether its last request was given up before or after that.
func TestSilentH2ConnectionOfAnEndpointThatEnded(t *testing.T) {
	for name, before := range map[string]bool{"given up before": true, "given up after": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				h := newHost(ctx, 0)
				halfDead(t, h, 10, func(*rawH2) {})
				r := &roads{by: h.network.DialContext}
				life, end := context.WithCancel(ctx)
				defer end()
				e := NewEndpoint(life, "10.0.0.2:80", WithHTTP2(), WithDialContext(r.DialContext))
				open := func() int {
					synctest.Wait()
					_, open, _ := r.state()
					return open
				}
				if before {
					require.ErrorIs(t, hasty(ctx, e), context.DeadlineExceeded)
					end()
				} else {
					time.AfterFunc(time.Second/2, end)
					require.ErrorIs(t, hasty(ctx, e), context.DeadlineExceeded)
				}
				time.Sleep(patienceAtTheEnd - time.Millisecond)
				assert.Equal(t, 1, open(), "the reset may be on its way")
				time.Sleep(time.Millisecond)
				assert.Equal(t, 0, open())
			})
		})
	}
}

// A frozen server is noticed after the interval and the timeout: the requests on its
// connection fail. A slow server that answers PINGs is not affected.
func TestPingFindsFrozenServer(t *testing.T) {
	for name, frozen := range map[string]bool{"frozen": true, "slow": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				h := newHost(ctx, 0)
				rawHost(t, h, "10.0.0.2:80", func(_ int, c *rawH2) {
					c.settings(100)
					if !frozen {
						time.AfterFunc(time.Minute, func() { c.respond(1, "late") })
					}
					for {
						kind, flags, _, payload, err := c.next()
						if err != nil {
							return
						}
						if !frozen && kind == framePing && flags&flagAck == 0 {
							c.frame(framePing, flagAck, 0, payload)
						}
					}
				})
				e := NewEndpoint(ctx, "10.0.0.2:80", WithHTTP2(), WithDialContext(h.network.DialContext), WithPing(10*time.Second, 3*time.Second))
				began := time.Now()
				err := get(ctx, e, "/")
				if frozen {
					require.Error(t, err)
					assert.Equal(t, 13*time.Second, time.Since(began).Round(time.Second))
					return
				}
				require.NoError(t, err)
				assert.Equal(t, time.Minute, time.Since(began).Round(time.Second))
			})
		})
	}
}
