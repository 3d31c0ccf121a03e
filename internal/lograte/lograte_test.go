package lograte_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/lograte"
)

func logger(b *safeBuffer) *slog.Logger {
	untimed := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	opts := &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: untimed}
	return slog.New(lograte.New(slog.NewTextHandler(b, opts)))
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.b.Reset()
	return s.b.String()
}

func TestHandlerFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b safeBuffer
		log := logger(&b)
		for range 44236 { // what one client wrote in 30 s
			log.Warn("refused", "stream", 1)
			time.Sleep(30 * time.Second / 44236)
		}
		time.Sleep(2 * lograte.Period)
		text := b.take()
		require.Equal(t, 30, strings.Count(text, "msg=refused stream=1\n"))
		require.Equal(t, 3, strings.Count(text, `level=WARN msg="repeated message suppressed" message=refused count=`))
		written, suppressed := 0, 0
		for line := range strings.Lines(text) {
			var n int
			if _, err := fmt.Sscanf(line, `level=WARN msg="repeated message suppressed" message=refused count=%d`, &n); err == nil {
				suppressed += n
			} else {
				written++
			}
		}
		require.Equal(t, 44236, written+suppressed)

		time.Sleep(time.Hour)
		require.Empty(t, b.take(), "the count is written once")
		log.Warn("refused", "stream", 2)
		require.Equal(t, "level=WARN msg=refused stream=2\n", b.take())
	})
}

// badHandler panics once it is broken.
type badHandler struct {
	slog.Handler
	broken *atomic.Bool
}

func (h badHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h badHandler) Handle(context.Context, slog.Record) error {
	if h.broken.Load() {
		panic("log")
	}
	return nil
}

// A panic of the handler on the goroutine of the timer is dropped.
func TestHandlerPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		log := slog.New(lograte.New(badHandler{slog.DiscardHandler, &broken}))
		for range 2 * lograte.Burst {
			log.Warn("repeated")
		}
		broken.Store(true)
		time.Sleep(2 * lograte.Period)
		synctest.Wait()
		broken.Store(false)
		log.Warn("repeated")
	})
}

func TestHandlerDifferentMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b safeBuffer
		log := logger(&b)
		for i := range 5000 { // more than are counted
			r := slog.NewRecord(time.Now(), slog.LevelInfo, fmt.Sprint("message ", i), 0)
			require.NoError(t, log.Handler().Handle(t.Context(), r))
		}
		require.Equal(t, 5000, strings.Count(b.take(), "\n"))
		time.Sleep(lograte.Period)
		for range 100 {
			log.Info("a")
			log.Warn("a")
			log.Debug("a")
		}
		text := b.take()
		require.Equal(t, lograte.Burst, strings.Count(text, "level=INFO msg=a\n"))
		require.Equal(t, lograte.Burst, strings.Count(text, "level=WARN msg=a\n"))
		require.Equal(t, 100, strings.Count(text, "level=DEBUG msg=a\n"))
		time.Sleep(2 * lograte.Period)
		require.Equal(t, 2, strings.Count(b.take(), "count=90\n"))
	})
}

// A message that comes slowly is never suppressed.
func TestHandlerSlowMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b safeBuffer
		log := logger(&b)
		for range 100 {
			log.Warn("a")
			time.Sleep(lograte.Period / lograte.Burst)
		}
		require.Equal(t, 100, strings.Count(b.take(), "msg=a\n"))
	})
}

func TestHandlerDerivedLoggers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b safeBuffer
		log := logger(&b)
		for i := range 100 {
			log.With("request", i).WithGroup("g").Warn("a", "k", 1)
		}
		require.Equal(t, lograte.Burst, strings.Count(b.take(), "g.k=1\n"))
		time.Sleep(2 * lograte.Period)
		require.Equal(t, "level=WARN msg=\"repeated message suppressed\" request=10 g.message=a g.count=90\n", b.take())
	})
}

func TestNewOfHandler(t *testing.T) {
	h := lograte.New(slog.DiscardHandler)
	require.Same(t, h, lograte.New(h))
	derived := h.WithGroup("a")
	require.Same(t, derived, lograte.New(derived))
}

func TestConcurrentUse(t *testing.T) {
	var b safeBuffer
	log := logger(&b)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				log.Warn("a")
			}
		})
	}
	wg.Wait()
	require.Equal(t, lograte.Burst, strings.Count(b.take(), "msg=a\n"))
}
