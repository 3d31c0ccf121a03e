package discover_test

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// named is an endpoint with a TLS server name, which is part of its ID.
func named(i int, name string) resolve.Endpoint {
	e := at(i)
	e.ServerName = name
	return e
}

// renamed runs f after the name of endpoint 1 changed from "a" to "b". New services are
// not ready.
func renamed(t *testing.T, f func(t *testing.T, src *source, made *endpoints, c *consumer), opts ...discover.Option[*response]) {
	t.Helper()
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := &consumer{}
		go c.run(discover.Endpoints(ctx, src, "web", made.Make, opts...))
		src.update(replace(named(1, "a"), at(2)))
		synctest.Wait()
		require.Equal(t, []string{"+1 +2 exists"}, c.take())
		made.shut.Store(true)
		src.update(add(named(1, "b")))
		synctest.Wait()
		f(t, src, made, c)
		require.Empty(t, c.doubled)
	})
}

func TestHandover(t *testing.T) {
	renamed(t, func(t *testing.T, _ *source, made *endpoints, c *consumer) {
		time.Sleep(9 * time.Second)
		require.Empty(t, c.take())
		old := c.at(1)
		require.Equal(t, "a", old.ServerName)
		rsp, err := old.Service.Call(t.Context(), "")
		require.NoError(t, err)
		fs := made.of(1)
		require.Len(t, fs, 2)

		fs[1].open()
		synctest.Wait()
		require.Equal(t, []string{"+1 -1 exists"}, c.take())
		require.Equal(t, "b", c.at(1).ServerName)
		require.ErrorIs(t, layer.Poll(old.Service), layer.ErrClosed)
		require.NoError(t, fs[0].ctx.Err(), "a body is open")
		require.NoError(t, rsp.Body.Close())
		require.Error(t, fs[0].ctx.Err())
		time.Sleep(time.Minute)
		require.NoError(t, fs[1].ctx.Err())
		require.Empty(t, c.take(), "the timeout does not apply after the handover")
	})
}

func TestHandoverTimeout(t *testing.T) {
	type action func(t *testing.T, src *source, made *endpoints, c *consumer)
	sleep := func(d time.Duration) action {
		return func(*testing.T, *source, *endpoints, *consumer) { time.Sleep(d) }
	}
	update := func(u resolve.Update) action {
		return func(_ *testing.T, src *source, _ *endpoints, _ *consumer) { src.update(u) }
	}
	for _, tt := range []struct {
		name string
		do   []action
		opts []discover.Option[*response]
		want []string

		// The server names at address 1 that have a service, the oldest first. The
		// consumer has the first.
		living []string
	}{
		{"after ten seconds", []action{sleep(10 * time.Second)}, nil, []string{"+1 -1 exists"}, []string{"b"}},
		{"not before", []action{sleep(10*time.Second - 1)}, nil, nil, []string{"a", "b"}},
		{"after its own time", []action{sleep(time.Second)}, []discover.Option[*response]{discover.WithHandoverTimeout[*response](time.Second)}, []string{"+1 -1 exists"}, []string{"b"}},
		{"at once", nil, []discover.Option[*response]{discover.WithHandoverTimeout[*response](0)}, []string{"+1 -1 exists"}, []string{"b"}},
		{"the new one is closed", []action{func(_ *testing.T, _ *source, made *endpoints, _ *consumer) { made.of(1)[1].close() }}, nil, []string{"+1 -1 exists"}, []string{"b"}},
		{"removed", []action{update(remove(1))}, nil, []string{"-1 exists"}, nil},
		{"replaced by others", []action{update(replace(at(2)))}, nil, []string{"-1 exists"}, nil},
		{"empty", []action{update(resolve.Update{Kind: resolve.Empty})}, nil, []string{"-1 -2 empty"}, nil},
		{"no such target", []action{update(resolve.Update{Kind: resolve.DoesNotExist})}, nil, []string{"-1 -2 does not exist"}, nil},
		{"unresolvable", []action{func(_ *testing.T, src *source, _ *endpoints, _ *consumer) { src.fail(resolve.ErrUnresolvable) }}, nil, []string{"-1 -2 pending: " + resolve.ErrUnresolvable.Error()}, nil},
		{"other endpoints change", []action{update(add(at(3))), update(remove(2))}, nil, []string{"+3 exists", "-2 exists"}, []string{"a", "b"}},
		{"an error", []action{func(_ *testing.T, src *source, _ *endpoints, _ *consumer) { src.fail(io.EOF) }}, nil, []string{"exists: EOF"}, []string{"a", "b"}},
		{"changes back", []action{update(add(named(1, "a"))), sleep(time.Minute)}, nil, nil, []string{"a"}},
		{"changes back and away", []action{
			sleep(9 * time.Second), update(add(named(1, "a"))), update(add(named(1, "b"))), sleep(9 * time.Second),
		}, nil, nil, []string{"a", "b"}},
		{"changes back and away for the timeout", []action{
			sleep(9 * time.Second), update(add(named(1, "a"))), update(add(named(1, "b"))), sleep(10 * time.Second),
		}, nil, []string{"+1 -1 exists"}, []string{"b"}},
		{"the newest wins", []action{update(add(named(1, "c"))), func(_ *testing.T, _ *source, made *endpoints, _ *consumer) {
			made.of(1)[1].open() // of "b"
			made.of(1)[2].open()
		}}, nil, []string{"+1 -1 exists"}, []string{"c"}},
		{"the timeout starts again", []action{sleep(6 * time.Second), update(add(named(1, "c"))), sleep(9 * time.Second)}, nil, nil, []string{"a", "c"}},
		{"and ends", []action{sleep(6 * time.Second), update(add(named(1, "c"))), sleep(10 * time.Second)}, nil, []string{"+1 -1 exists"}, []string{"c"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			renamed(t, func(t *testing.T, src *source, made *endpoints, c *consumer) {
				for _, do := range tt.do {
					do(t, src, made, c)
					synctest.Wait()
				}
				require.Equal(t, tt.want, c.take())
				if e := c.at(1); len(tt.living) == 0 {
					require.Nil(t, e)
				} else {
					require.Equal(t, tt.living[0], e.ServerName)
				}
				var living []string
				for _, f := range made.of(1) {
					if f.ctx.Err() == nil {
						living = append(living, f.target.Endpoint.ServerName)
					}
				}
				require.Equal(t, tt.living, living)
			}, tt.opts...)
		})
	}
}

// An ID that changes back keeps its service and gets the labels of the update.
func TestHandoverChangesBack(t *testing.T) {
	renamed(t, func(t *testing.T, src *source, made *endpoints, c *consumer) {
		old := c.at(1)
		labels := named(1, "a")
		labels.Labels = map[string]string{"zone": "x"}
		src.update(add(labels))
		synctest.Wait()
		require.Equal(t, []string{"~1 exists"}, c.take())
		require.Same(t, old.Service, c.at(1).Service)
		require.Equal(t, "x", c.at(1).Labels["zone"])
		require.Error(t, made.of(1)[1].ctx.Err(), "the successor is dropped")
		require.Len(t, made.of(1), 2)
	})
}

// New labels of the successor are yielded when it takes over.
func TestHandoverLabels(t *testing.T) {
	renamed(t, func(t *testing.T, src *source, made *endpoints, c *consumer) {
		labels := named(1, "b")
		labels.Labels = map[string]string{"zone": "x"}
		src.update(add(labels))
		synctest.Wait()
		require.Empty(t, c.take())
		made.of(1)[1].open()
		synctest.Wait()
		require.Equal(t, []string{"+1 -1 exists"}, c.take())
		require.Equal(t, "x", c.at(1).Labels["zone"])
		require.Len(t, made.of(1), 2, "labels are not part of the ID")
	})
}

// An error that the contract of Ready does not allow means not ready.
func TestHandoverReadyBreaksContract(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		asked := 0
		mk := func(ctx context.Context, tg discover.Target) service {
			svc := made.Make(ctx, tg)
			svc.(*fake).ready = func(context.Context) error {
				if asked++; asked < 3 {
					return io.ErrUnexpectedEOF
				}
				return nil
			}
			return svc
		}
		c := &consumer{}
		go c.run(discover.Endpoints(ctx, src, "web", mk))
		src.update(add(named(1, "a")))
		synctest.Wait()
		src.update(add(named(1, "b")))
		synctest.Wait()
		require.Equal(t, []string{"+1 exists"}, c.take())
		time.Sleep(time.Second)
		require.Equal(t, []string{"+1 -1 exists"}, c.take())
		require.Equal(t, 3, asked)
	})
}

// waiting returns the number of goroutines that wait for a successor. It reads the
// stacks, because runtime.NumGoroutine includes goroutines of the runtime.
func waiting() int {
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Count(stacks, []byte("discover.(*watch[...]).await("))
}

// One goroutine waits for each successor and ends with the handover.
func TestHandoverGoroutines(t *testing.T) {
	const n = 100
	for name, end := range map[string]func(src *source, made *endpoints, finish func()){
		"ready": func(_ *source, made *endpoints, _ func()) {
			for i := range n {
				made.of(i)[1].open()
			}
		},
		"changes back": func(src *source, _ *endpoints, _ func()) { src.update(replace(many(n)...)) },
		"removed":      func(src *source, _ *endpoints, _ func()) { src.update(resolve.Update{Kind: resolve.Empty}) },
		"timeout":      func(*source, *endpoints, func()) { time.Sleep(10 * time.Second) },
		"context":      func(_ *source, _ *endpoints, finish func()) { finish() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
				ctx, finish := context.WithCancel(ctx)
				defer finish()
				c := start(ctx, src, made)
				src.update(replace(many(n)...))
				synctest.Wait()
				require.Len(t, c.now, n)
				made.shut.Store(true)
				others := make([]resolve.Endpoint, n)
				for i := range others {
					others[i] = named(i, "b")
				}
				src.update(replace(others...))
				synctest.Wait()
				require.Equal(t, n, waiting())
				end(src, made, finish)
				synctest.Wait()
				require.Zero(t, waiting())
				require.Empty(t, c.doubled)
			})
		})
	}
}
