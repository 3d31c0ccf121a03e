package linkerd

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/resolve"
)

var (
	addr1 = netip.MustParseAddrPort("10.0.0.1:80")
	addr2 = netip.MustParseAddrPort("10.0.0.2:80")

	steady = WithBackoff(resolve.Backoff{Min: time.Second, Max: time.Second})
)

type play struct {
	messages []*destination.Update
	end      error
}

// plays is a controller that plays one script for each Get. After the last script it reports that
// the target is not a service.
func plays(scripts ...play) func(*destination.GetDestination, getStream) error {
	n := 0
	return func(_ *destination.GetDestination, to getStream) error {
		if n == len(scripts) {
			return status.Error(codes.InvalidArgument, "not a service")
		}
		p := scripts[n]
		n++
		for _, m := range p.messages {
			if err := to.Send(m); err != nil {
				return err
			}
		}
		return p.end
	}
}

type heard struct {
	updates []resolve.Update
	errs    []error
	last    error
}

// listen resolves until the controller rejects the target.
func listen(t *testing.T, r resolve.Resolver) (h heard) {
	for u, err := range r.Resolve(t.Context(), "web:80") {
		require.NoError(t, h.last, "something came after the last item")
		switch {
		case errors.Is(err, resolve.ErrUnresolvable):
			h.last = err
		case err != nil:
			h.errs = append(h.errs, err)
		default:
			h.updates = append(h.updates, u)
		}
	}
	require.Error(t, h.last)
	return h
}

// The table of wire.md §9.
func TestStateMachine(t *testing.T) {
	replace := func(addrs ...netip.AddrPort) resolve.Update {
		u := resolve.Update{Kind: resolve.Replace}
		for _, a := range addrs {
			u.Endpoints = append(u.Endpoints, resolve.Endpoint{ID: resolve.ID{Addr: a}})
		}
		return u
	}
	added := func(addrs ...netip.AddrPort) resolve.Update {
		u := replace(addrs...)
		u.Kind = resolve.Add
		return u
	}
	removed := resolve.Update{Kind: resolve.Remove, Removed: []netip.AddrPort{addr1}}
	empty, absent := resolve.Update{Kind: resolve.Empty}, resolve.Update{Kind: resolve.DoesNotExist}

	add1, add2 := addMessage(tcp(addr1)), addMessage(tcp(addr2))
	remove1 := removeMessage(tcp(addr1))
	for name, tt := range map[string]struct {
		messages []*destination.Update
		want     []resolve.Update
	}{
		"awaiting: add":                      {[]*destination.Update{add1}, []resolve.Update{replace(addr1)}},
		"awaiting: add without address":      {[]*destination.Update{addMessage(nowhere), add1}, []resolve.Update{replace(addr1)}},
		"awaiting: add of nothing":           {[]*destination.Update{addMessage(), add1}, []resolve.Update{replace(addr1)}},
		"awaiting: empty oneof":              {[]*destination.Update{{}, add1}, []resolve.Update{replace(addr1)}},
		"awaiting: remove":                   {[]*destination.Update{remove1, add1}, []resolve.Update{replace(addr1)}},
		"awaiting: remove without address":   {[]*destination.Update{removeMessage(nowhere), add1}, []resolve.Update{replace(addr1)}},
		"awaiting: only what does not count": {[]*destination.Update{remove1, {}, addMessage(nowhere)}, nil},
		"awaiting: no endpoints":             {[]*destination.Update{noEndpoints(true)}, []resolve.Update{empty}},
		"awaiting: does not exist":           {[]*destination.Update{noEndpoints(false)}, []resolve.Update{absent}},
		"streaming: add":                     {[]*destination.Update{add1, add2, add1}, []resolve.Update{replace(addr1), added(addr2), added(addr1)}},
		"streaming: remove":                  {[]*destination.Update{add1, remove1, remove1}, []resolve.Update{replace(addr1), removed, removed}},
		"streaming: message without effect": {
			[]*destination.Update{add1, {}, addMessage(nowhere), removeMessage(nowhere), add2},
			[]resolve.Update{replace(addr1), added(addr2)},
		},
		"streaming: no endpoints": {
			[]*destination.Update{add1, noEndpoints(true), noEndpoints(false), noEndpoints(true), add1},
			[]resolve.Update{replace(addr1), empty, absent, empty, added(addr1)},
		},
		"empty, then remove": {[]*destination.Update{noEndpoints(true), remove1}, []resolve.Update{empty, removed}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m inMemory
				// Twice the same: a second stream starts where the first did.
				m.start(t, plays(play{tt.messages, nil}, play{tt.messages, status.Error(codes.Unavailable, "gone")}))
				h := listen(t, New(m.connect(t), steady))
				assert.Equal(t, append(append([]resolve.Update(nil), tt.want...), tt.want...), h.updates)
				require.Len(t, h.errs, 2)
				require.ErrorIs(t, h.errs[0], stream.ErrEnded)
				require.ErrorContains(t, h.errs[0], `linkerd: get "web:80": stream ended`)
				require.Equal(t, codes.Unavailable, status.Code(h.errs[1]))
			})
		})
	}
}

func TestStreamStatus(t *testing.T) {
	for code := codes.Code(1); code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m inMemory
				m.start(t, plays(
					play{[]*destination.Update{noEndpoints(true)}, status.Error(code, "because")},
					play{[]*destination.Update{noEndpoints(false)}, nil},
				))
				h := listen(t, New(m.connect(t), steady))
				if code == codes.InvalidArgument || code == codes.FailedPrecondition {
					assert.Len(t, h.updates, 1)
					assert.Empty(t, h.errs)
					assert.Equal(t, code, status.Code(h.last), "the status is wrapped")
					assert.ErrorContains(t, h.last, `linkerd: get "web:80": `)
					assert.ErrorContains(t, h.last, "because")
					return
				}
				assert.Len(t, h.updates, 2)
				require.Len(t, h.errs, 2)
				assert.Equal(t, code, status.Code(h.errs[0]))
				assert.ErrorContains(t, h.errs[0], "because")
			})
		})
	}
}

func TestRequest(t *testing.T) {
	for name, tt := range map[string]struct {
		opts  []Option
		token string
	}{
		"default": {nil, ""},
		"token":   {[]Option{WithContextToken("old"), WithContextToken(`{"ns":"default"}`)}, `{"ns":"default"}`},
	} {
		t.Run(name, func(t *testing.T) {
			var got *destination.GetDestination
			conn := loopback(t, func(req *destination.GetDestination, _ getStream) error {
				got = req
				return status.Error(codes.InvalidArgument, "enough")
			})
			listen(t, New(conn, tt.opts...))
			assert.Equal(t, "k8s", got.GetScheme())
			assert.Equal(t, "web:80", got.GetPath())
			assert.Equal(t, tt.token, got.GetContextToken())
		})
	}
}

// The stream at the controller ends at once with that of the consumer.
func TestStreamEnds(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, r resolve.Resolver){
		"break": func(t *testing.T, r resolve.Resolver) {
			for range r.Resolve(t.Context(), "web:80") {
				return
			}
		},
		"context": func(t *testing.T, r resolve.Resolver) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for range r.Resolve(ctx, "web:80") {
				cancel()
			}
		},
		"context, as nothing comes": func(t *testing.T, r resolve.Resolver) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for range r.Resolve(ctx, "web:80") {
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m inMemory
				open := 0
				m.start(t, func(_ *destination.GetDestination, to getStream) error {
					open++
					defer func() { open-- }()
					if err := to.Send(noEndpoints(true)); err != nil {
						return err
					}
					<-to.Context().Done()
					return to.Context().Err()
				})
				r := New(m.connect(t), steady)
				for range 3 {
					before := time.Now()
					leave(t, r)
					assert.LessOrEqual(t, time.Since(before), time.Minute)
					synctest.Wait()
					assert.Zero(t, open)
				}
			})
		})
	}
}

func TestContextEndsInBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m inMemory
		m.start(t, plays(play{nil, nil}))
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		start := time.Now()
		items := 0
		for _, err := range New(m.connect(t), WithBackoff(resolve.Backoff{Min: time.Hour, Max: time.Hour})).Resolve(ctx, "web:80") {
			items++
			assert.ErrorIs(t, err, stream.ErrEnded)
		}
		assert.Equal(t, 1, items)
		assert.Equal(t, 90*time.Second, time.Since(start))
	})
}
