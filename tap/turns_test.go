package tap

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

// sendings is what a stream was sent, and when.
type sendings struct {
	mu    sync.Mutex
	all   []Event
	after []time.Duration
}

func (s *sendings) add(e Event, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all, s.after = append(s.all, e), append(s.after, after)
}

// events waits until all is still.
func (s *sendings) events() []Event {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

// watchFor has srv serve req on a stream without a connection, in a bubble.
func watchFor(t *testing.T, srv *Server, req *tappb.WatchRequest) (got *sendings, leave func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	got, begun, ended := &sendings{}, time.Now(), make(chan error, 1)
	go func() {
		ended <- own{server: srv}.Watch(req, watchStream{ctx: ctx, send: func(m *tappb.WatchResponse) error {
			got.add(watchEventOf(m), time.Since(begun))
			return nil
		}})
	}()
	synctest.Wait()
	return got, func() error {
		cancel()
		return <-ended
	}
}

func TestEventsOfARequestAreSentTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := NewServer(nil, WithAllowRemote())
		svc := stand(srv.reg, respond("x"))
		got, leave := watchFor(t, srv, &tappb.WatchRequest{})
		send(t, svc, get("/"))
		require.Empty(t, got.events())
		time.Sleep(gatherFor)
		require.Equal(t, "qre", kinds(got.events()))

		rsp, err := svc.Call(t.Context(), get("/"))
		require.NoError(t, err)
		time.Sleep(gatherFor)
		require.Equal(t, "qreqr", kinds(got.events()), "the end is not waited for")
		require.NoError(t, rsp.Body.Close())
		time.Sleep(gatherFor)
		require.Equal(t, "qreqre", kinds(got.events()))
		require.Equal(t, []time.Duration{gatherFor, gatherFor, gatherFor, 2 * gatherFor, 2 * gatherFor, 3 * gatherFor}, got.after)
		require.Error(t, leave())
	})
}

// What would be lost by waiting is not waited for.
func TestABufferThatFillsIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := NewServer(NewRegistry(WithCapacity(0, 12)), WithAllowRemote())
		svc := stand(srv.reg, respond("x"))
		got, leave := watchFor(t, srv, &tappb.WatchRequest{})
		begun := time.Now()
		for range 10 {
			send(t, svc, get("/"))
			send(t, svc, get("/"))
			synctest.Wait()
		}
		require.Zero(t, time.Since(begun))
		require.GreaterOrEqual(t, len(got.events()), 54, "all but one in hand and less than half of the buffer")
		time.Sleep(gatherFor)
		require.Len(t, got.events(), 60)
		require.Error(t, leave())
	})
}

// Nor is it if it fills with what is kept of bodies, or for requests whose outcome
// is not known.
func TestABufferThatFillsWithBodiesIsRead(t *testing.T) {
	for name, fill := range map[string]func(w *watcher){
		"bodies": func(w *watcher) {
			b := newBodies(w, fields{})
			b.request.take(0, make([]byte, maxBodies))
			b.response.take(0, make([]byte, maxBodies))
		},
		"kept back": func(w *watcher) { (&seat{watcher: w}).hold(maxText / 2) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := NewServer(NewRegistry(WithBodies(maxBodies, asItIs)), WithAllowRemote())
				svc := stand(srv.reg, respond("x"))
				got, leave := watchFor(t, srv, &tappb.WatchRequest{})
				send(t, svc, get("/"))
				begun := time.Now()
				require.Empty(t, got.events())
				fill(srv.reg.active.Load().watchers[0])
				require.Equal(t, "qre", kinds(got.events()))
				require.Zero(t, time.Since(begun))
				require.Error(t, leave())
			})
		})
	}
}

// Neither is the end of what was asked for, or of the server.
func TestAnEndIsNotWaitedFor(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, srv *Server, svc service){
		"limit":    func(t *testing.T, _ *Server, svc service) { t.Helper(); send(t, svc, get("/")) },
		"duration": func(*testing.T, *Server, service) { time.Sleep(gatherFor / 2) },
		"shutdown": func(_ *testing.T, srv *Server, _ service) { srv.Shutdown() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := NewServer(nil, WithAllowRemote())
				svc := stand(srv.reg, respond("x"))
				req := &tappb.WatchRequest{Limit: 2}
				if name == "duration" {
					req = &tappb.WatchRequest{Duration: durationpb.New(gatherFor / 2)}
				}
				got, leave := watchFor(t, srv, req)
				send(t, svc, get("/"))
				require.Empty(t, got.events())
				begun := time.Now()
				end(t, srv, svc)
				synctest.Wait()
				require.Less(t, time.Since(begun), gatherFor)
				require.Equal(t, "qre", kinds(got.events())[:3])
				_ = leave()
			})
		})
	}
}

// Who ranges over what is in the process waits for nothing.
func TestNothingIsGatheredInTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		svc := stand(reg, respond("x"))
		got := 0
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for _, err := range reg.Watch(ctx, &tappb.WatchRequest{}) {
				if err == nil {
					got++
				}
			}
		}()
		synctest.Wait()
		begun := time.Now()
		for range 5 {
			send(t, svc, get("/"))
			synctest.Wait()
		}
		require.Zero(t, time.Since(begun))
		require.Equal(t, 15, got)
		cancel()
		<-ended
	})
}

// The news of drops are events as well.
func TestEventRateBoundsTheNewsOfDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := NewServer(NewRegistry(WithCapacity(0, 20)), WithAllowRemote(), WithEventRate(1000))
		svc := stand(srv.reg, respond("x"))
		one, leaveOne := watchFor(t, srv, &tappb.WatchRequest{})
		other, leaveOther := watchFor(t, srv, &tappb.WatchRequest{})
		for range 3000 { // in three seconds
			for range 5 {
				send(t, svc, get("/"))
			}
			time.Sleep(time.Millisecond)
		}
		require.InDelta(t, 3000, len(one.events())+len(other.events()), 50)
		require.InDelta(t, 1500, len(one.events()), 200, "each has its part")
		require.Error(t, leaveOne())
		require.Error(t, leaveOther())
	})
}
