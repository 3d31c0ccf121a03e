package linkerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

func TestRequest(t *testing.T) {
	w := watch(t.Context(), t, WithContextToken("a token"))
	p, ok, err := w.during(func() {
		s := <-w.streams
		assert.Equal(t, "k8s", s.GetScheme())
		assert.Equal(t, "web:80", s.GetPath())
		assert.Equal(t, "a token", s.GetContextToken())
		s.messages <- fqn("web.local")
	})
	require.NoError(t, err)
	require.True(t, ok)
	assert.Equal(t, "web.local", p.Name)
}

func TestWatchReplacesProfile(t *testing.T) {
	w := watch(t.Context(), t)
	var s *profileStream
	p, _, _ := w.during(func() {
		s = <-w.streams
		assert.Empty(t, s.GetContextToken())
		s.messages <- &destination.DestinationProfile{FullyQualifiedName: "one", OpaqueProtocol: true}
	})
	assert.Equal(t, &profiles.Profile{Name: "one", OpaqueProtocol: true, Distribution: profiles.RandomAvailable}, p)
	p, _, _ = w.during(func() { s.messages <- fqn("two") })
	assert.Equal(t, &profiles.Profile{Name: "two", Distribution: profiles.RandomAvailable}, p, "nothing is left of the one before")
	p, ok, err := w.during(func() { s.messages <- fqn("") })
	require.NoError(t, err)
	require.True(t, ok)
	assert.Equal(t, &profiles.Profile{Distribution: profiles.RandomAvailable}, p, "an empty one is a profile")
}

// The clean end of a stream is routine: news, and another stream.
func TestStreamEndsWithoutError(t *testing.T) {
	w := watch(t.Context(), t)
	_, ok, err := w.during(func() {
		s := <-w.streams
		s.messages <- fqn("one")
		go func() { s.end <- nil }()
	})
	require.NoError(t, err)
	require.True(t, ok)
	p, err, ok := w.pull()
	assert.Nil(t, p)
	require.ErrorIs(t, err, stream.ErrEnded)
	require.EqualError(t, err, `linkerd: get profile "web:80": stream ended`)
	require.True(t, ok)
	p, _, err = w.during(func() { (<-w.streams).messages <- fqn("two") })
	require.NoError(t, err)
	assert.Equal(t, "two", p.Name)
}

func TestStatuses(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			final := code == codes.InvalidArgument || code == codes.FailedPrecondition
			w := watch(t.Context(), t)
			p, ok, err := w.during(func() { (<-w.streams).end <- status.Error(code, "because") })
			assert.Nil(t, p)
			require.True(t, ok)
			require.ErrorContains(t, err, `linkerd: get profile "web:80": `)
			require.ErrorContains(t, err, "because")
			assert.Equal(t, code, status.Code(err), "the status can be found in it")
			assert.Equal(t, final, errors.Is(err, profiles.ErrNoProfile))
			if final {
				_, _, ok = w.pull()
				assert.False(t, ok, "it is the last item")
				return
			}
			p, _, err = w.during(func() { (<-w.streams).messages <- fqn("two") })
			require.NoError(t, err)
			assert.Equal(t, "two", p.Name)
		})
	}
}

func TestFinalStatusAfterMessages(t *testing.T) {
	w := watch(t.Context(), t)
	var s *profileStream
	_, _, err := w.during(func() { s = <-w.streams; s.messages <- fqn("one") })
	require.NoError(t, err)
	_, _, err = w.during(func() { s.end <- status.Error(codes.InvalidArgument, "gone") })
	require.ErrorIs(t, err, profiles.ErrNoProfile)
	_, _, ok := w.pull()
	assert.False(t, ok)
}

func TestWatchConsumerBreaks(t *testing.T) {
	w := watch(t.Context(), t)
	var s *profileStream
	_, ok, _ := w.during(func() { s = <-w.streams; s.messages <- fqn("one") })
	require.True(t, ok)
	w.stop()
	<-s.ctx.Done()
}

func TestWatchContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := watch(ctx, t)
	var s *profileStream
	_, ok, _ := w.during(func() { s = <-w.streams; s.messages <- fqn("one") })
	require.True(t, ok)
	_, ok, _ = w.during(cancel)
	assert.False(t, ok, "the end of ctx is the end, not news")
	<-s.ctx.Done()
}

func TestWatchSeparateStreams(t *testing.T) {
	c := newController()
	addr, _ := c.serve(t, "")
	src := New(dial(t, addr))
	for _, target := range []string{"a:80", "b:80", "a:80"} {
		pull, stop := iter.Pull2(src.Watch(t.Context(), target))
		defer stop()
		go func() {
			s := <-c.streams
			s.messages <- fqn("of-" + s.GetPath())
		}()
		p, err, _ := pull()
		require.NoError(t, err)
		assert.Equal(t, "of-"+target, p.Name)
	}
}

// The controller goes away and comes back: news, then its new profile.
func TestControllerRestart(t *testing.T) {
	c := newController()
	addr := freeport.Addr(t)
	_, stop := c.serve(t, addr)
	pull, stopPulling := iter.Pull2(New(dial(t, addr), WithBackoff(layer.Backoff{Min: 1, Max: 1})).Watch(t.Context(), "web:80"))
	defer stopPulling()
	w := &watching{t: t, controller: c, pull: pull}
	_, _, err := w.during(func() { (<-c.streams).messages <- fqn("one") })
	require.NoError(t, err)
	stop()
	for range 3 {
		_, err, ok := pull()
		require.True(t, ok)
		require.Error(t, err)
		require.NotErrorIs(t, err, profiles.ErrNoProfile)
	}
	c.serve(t, addr)
	go func() { (<-c.streams).messages <- fqn("two") }()
	p, err, _ := pull()
	for late := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(late); { // the connection has to be made first
		p, err, _ = pull()
	}
	require.NoError(t, err)
	assert.Equal(t, "two", p.Name)
}

// The log has at most ten parts of a message, and only new parts of the next one.
func TestLogLimit(t *testing.T) {
	var out bytes.Buffer
	w := watch(t.Context(), t, WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
	lines := func() int {
		defer out.Reset()
		return bytes.Count(out.Bytes(), []byte("\n"))
	}
	class := &destination.ResponseClass{Condition: statusRange(0, 499)} // only a maximum: linkerd's controller takes it
	ordinary := func() *destination.DestinationProfile {
		return &destination.DestinationProfile{Routes: []*destination.Route{
			{Condition: path("/a"), ResponseClasses: []*destination.ResponseClass{class}},
		}}
	}
	var s *profileStream
	first, _, err := w.during(func() { s = <-w.streams; s.messages <- ordinary() })
	require.NoError(t, err)
	assert.Equal(t, 1, lines())
	again, _, err := w.during(func() { s.messages <- ordinary() })
	require.NoError(t, err)
	assert.Zero(t, lines())
	assert.Same(t, first, again, "it need not be looked at again")

	more := ordinary()
	more.Routes = append(more.Routes, &destination.Route{})
	p, _, err := w.during(func() { s.messages <- more })
	require.NoError(t, err)
	assert.Len(t, p.Routes, 1)
	assert.Equal(t, 1, lines())

	for range 20_000 {
		more.DstOverrides = append(more.DstOverrides, &destination.WeightedDst{Authority: fmt.Sprint("no port ", len(more.GetDstOverrides()))})
	}
	_, _, err = w.during(func() { s.messages <- more })
	require.NoError(t, err)
	assert.Equal(t, 9, lines(), "ten in all, and how many more")
}

// Invalid parts are logged, and the rest of the profile is delivered.
func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	w := watch(t.Context(), t, WithLogger(log))
	p, _, err := w.during(func() {
		(<-w.streams).messages <- &destination.DestinationProfile{
			FullyQualifiedName: "web", DstOverrides: []*destination.WeightedDst{{Authority: "nowhere", Weight: 1}},
		}
	})
	require.NoError(t, err)
	assert.Equal(t, &profiles.Profile{Name: "web", Distribution: profiles.RandomAvailable}, p)
	assert.Equal(t, `level=WARN msg="left out of a profile" target=web:80 err="target \"nowhere\": no port"`+"\n", out.String())
}
