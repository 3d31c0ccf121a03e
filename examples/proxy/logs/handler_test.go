package logs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/logs"
)

func level(t testing.TB, filter string) *logs.Level {
	t.Helper()
	l, err := logs.NewLevel(filter)
	require.NoError(t, err)
	return l
}

// at writes one record with a known time.
func at(t *testing.T, h slog.Handler, timestamp time.Time, l slog.Level, message string, attrs ...slog.Attr) {
	t.Helper()
	r := slog.NewRecord(timestamp, l, message, 0)
	r.AddAttrs(attrs...)
	if h.Enabled(context.Background(), l) {
		require.NoError(t, h.Handle(context.Background(), r))
	}
}

func TestPlain(t *testing.T) {
	var b bytes.Buffer
	start := time.Unix(1_700_000_000, 0)
	h := logs.New(&b, level(t, "debug"), logs.Start(start))
	at(t, h, start.Add(1234*time.Microsecond), slog.LevelInfo, "message", slog.String("k", "v"))
	at(t, h, start.Add(75*time.Minute), slog.LevelError, "two\nlines", slog.Any("err", errors.New(`dial "x"`)), slog.Duration("d", time.Second))
	with := h.WithAttrs([]slog.Attr{logs.Target("linkerd_tap"), slog.Int("n", 1)}).WithGroup("g")
	at(t, with, start, slog.LevelDebug, "grouped", slog.Group("h", slog.Bool("b", true)), slog.String("empty", ""), slog.String("esc", "\x1b[31m"))
	at(t, with, start, logs.LevelTrace, "not shown")
	require.Equal(t, `[  0.001234s]  INFO ThreadId(01) linkerd_app: message k=v
[4500.000000s] ERROR ThreadId(01) linkerd_app: two\nlines err="dial \"x\"" d=1s
[  0.000000s] DEBUG ThreadId(01) linkerd_tap: grouped n=1 g.h.b=true g.empty="" g.esc="\x1b[31m"
`, b.String())
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	h := logs.New(&b, level(t, "info"), logs.JSON())
	timestamp := time.Date(2026, time.November, 22, 1, 2, 3, 4000000, time.FixedZone("", 3600))
	at(t, h, timestamp, slog.LevelWarn, "me\"ss", slog.Int("n", 1), slog.Any("err", errors.New("x")), slog.Float64("nan", nan()))
	require.JSONEq(t, `{"timestamp":"2026-11-22T00:02:03.004Z","level":"WARN","fields":{"message":"me\"ss","n":1,"err":"x","nan":"NaN"},
		"target":"linkerd_app","spans":[],"threadId":"ThreadId(1)"}`, b.String())
	require.Equal(t, 1, strings.Count(b.String(), "\n"))
	require.Contains(t, b.String(), `"fields":{"message":`, "the message is first")
}

func nan() float64 {
	zero := 0.0
	return zero / zero
}

// TestSlogConformance runs the standard library's test suite on JSON records, in slog's own form.
func TestSlogConformance(t *testing.T) {
	var b bytes.Buffer
	each := func() slog.Handler { return logs.New(&b, level(t, "trace"), logs.JSON()) }
	err := slogtest.TestHandler(renewed(each), func() []map[string]any {
		var all []map[string]any
		for line := range strings.Lines(b.String()) {
			var r struct {
				Timestamp, Level string
				Fields           map[string]any
			}
			require.NoError(t, json.Unmarshal([]byte(line), &r))
			m := map[string]any{"time": r.Timestamp, "level": r.Level, "msg": r.Fields["message"]}
			delete(r.Fields, "message")
			for key, value := range r.Fields {
				nest(m, strings.Split(key, "."), value)
			}
			all = append(all, m)
		}
		return all
	})
	// The suite requires that a record without a time is written without one. Linkerd's formats
	// require a time in each record.
	if err != nil {
		require.ErrorContains(t, err, "a Handler should ignore a zero Record.Time")
		require.Equal(t, 1, strings.Count(err.Error(), "a Handler should"), err)
	}
}

// renewed is a new handler for each record, because the suite repeats messages more often than the
// limit allows.
type renewed func() slog.Handler

func (r renewed) Enabled(ctx context.Context, l slog.Level) bool { return r().Enabled(ctx, l) }
func (r renewed) Handle(ctx context.Context, record slog.Record) error {
	return r().Handle(ctx, record)
}
func (r renewed) WithAttrs(attrs []slog.Attr) slog.Handler { return r().WithAttrs(attrs) }
func (r renewed) WithGroup(name string) slog.Handler       { return r().WithGroup(name) }

func nest(m map[string]any, path []string, value any) {
	for ; len(path) > 1; path = path[1:] {
		next, ok := m[path[0]].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[path[0]] = next
		}
		m = next
	}
	m[path[0]] = value
}

func TestLevelChange(t *testing.T) {
	var b bytes.Buffer
	l := level(t, "warn")
	log := slog.New(logs.New(&b, l))
	tapLog := log.With(logs.Target("linkerd_tap"))
	log.Info("no")
	require.Error(t, l.Set("a=b"))
	require.Equal(t, "warn", l.Filter().String())
	require.NoError(t, l.Set("warn,linkerd_tap=info"))
	log.Info("no")
	tapLog.Info("yes")
	require.Equal(t, 1, strings.Count(b.String(), "\n"))
	require.Contains(t, b.String(), "yes")
	require.False(t, slog.New(logs.New(&b, new(logs.Level))).Enabled(t.Context(), slog.LevelError), "the zero Level is off")
}

// Layers log a destination as "target", which is a field. linkerd's filter still applies to these
// records.
func TestTargetField(t *testing.T) {
	var plain, object bytes.Buffer
	for _, h := range []slog.Handler{
		logs.New(&plain, level(t, "linkerd=debug")), logs.New(&object, level(t, "linkerd=debug"), logs.JSON()),
	} {
		log := slog.New(h)
		log.With("target", "127.0.0.1:9").Debug("profile")
		log.With("target", "127.0.0.1:9").With(logs.Target("linkerd_tap")).Warn("stream", "target", "127.0.0.2:9")
		log.With(logs.Target("other")).With("target", "linkerd_app").Error("not selected")
	}
	require.Regexp(t, `^\[ *\d+\.\d{6}s\] DEBUG ThreadId\(01\) linkerd_app: profile target=127\.0\.0\.1:9
\[ *\d+\.\d{6}s\]  WARN ThreadId\(01\) linkerd_tap: stream target=127\.0\.0\.1:9 target=127\.0\.0\.2:9
$`, plain.String())
	for line := range strings.Lines(object.String()) {
		var r struct {
			Fields map[string]string
			Target string
		}
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.Contains(t, r.Target, "linkerd_")
		require.Contains(t, r.Fields["target"], "127.0.0.")
	}
	require.Equal(t, 2, strings.Count(object.String(), "\n"))
}

// Other handlers show a target as text.
func TestTargetOfAnotherHandler(t *testing.T) {
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).With(logs.Target("linkerd_tap")).Info("x")
	require.Contains(t, b.String(), "target=linkerd_tap")
}

func TestConcurrentLines(t *testing.T) {
	var b bytes.Buffer
	l := level(t, "debug")
	log := slog.New(logs.New(&b, l))
	var wg sync.WaitGroup
	for i := range 8 {
		logger := log.With("worker", i)
		wg.Go(func() {
			for range 100 {
				logger.Debug("x", "a", 1)
				_ = l.Set("debug,x=info")
			}
		})
	}
	wg.Wait()
	for line := range strings.Lines(b.String()) {
		require.Regexp(t, `^\[ *\d+\.\d{6}s\] DEBUG ThreadId\(01\) linkerd_app: x worker=\d a=1\n$`, line)
	}
	require.Equal(t, 800, strings.Count(b.String(), "\n"))
}

func TestRepeatedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		log := slog.New(logs.New(&b, level(t, "info")))
		for range 1000 {
			log.With(logs.Target("linkerd_tap")).Warn("stream refused")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 10, strings.Count(b.String(), "linkerd_tap: stream refused\n"))
		require.Contains(t, b.String(), `WARN ThreadId(01) linkerd_tap: repeated message suppressed message="stream refused" count=990`)
		require.Equal(t, 11, strings.Count(b.String(), "\n"))
	})
}

func ExampleNew() {
	start := time.Now()
	l, err := logs.NewLevel("warn,linkerd=info")
	if err != nil {
		fmt.Println(err)
		return
	}
	h := logs.New(os.Stdout, l, logs.Start(start))
	r := slog.NewRecord(start.Add(1234*time.Microsecond), slog.LevelInfo, "listening", 0)
	r.AddAttrs(slog.String("addr", "127.0.0.1:4140"))
	_ = h.Handle(context.Background(), r)
	// Output:
	// [  0.001234s]  INFO ThreadId(01) linkerd_app: listening addr=127.0.0.1:4140
}

func BenchmarkPlain(b *testing.B) {
	// At debug, messages are not limited.
	log := slog.New(logs.New(discard{}, level(b, "warn,linkerd=debug")))
	b.Run("written", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			log.Debug("listening", "addr", "127.0.0.1:4140")
		}
	})
	b.Run("filtered", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			log.Log(b.Context(), logs.LevelTrace, "listening", "addr", "127.0.0.1:4140")
		}
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

type broken struct{ text string }

func (b *broken) Error() string { return b.text }

type bomb struct{}

func (bomb) Error() string { panic("boom") }

func TestErrorPanic(t *testing.T) {
	for err, want := range map[error]string{(*broken)(nil): "<nil>", bomb{}: "!PANIC: boom"} {
		var plain, inJSON bytes.Buffer
		at(t, logs.New(&plain, level(t, "info")), time.Now(), slog.LevelWarn, "x", slog.Any("err", err), slog.Int("n", 1))
		require.Contains(t, strings.ReplaceAll(plain.String(), `"`, ""), " x err="+want+" n=1\n")
		at(t, logs.New(&inJSON, level(t, "info"), logs.JSON()), time.Now(), slog.LevelWarn, "x", slog.Any("err", err))
		var r struct{ Fields map[string]string }
		require.NoError(t, json.Unmarshal(inJSON.Bytes(), &r))
		require.Equal(t, want, r.Fields["err"])
	}
}
