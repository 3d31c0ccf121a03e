package logs_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/examples/proxy/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFilter(t *testing.T) {
	const off = slog.Level(1 << 30)
	for _, tt := range []struct {
		filter, target string
		want           slog.Level
	}{
		{"warn,linkerd=info,hickory=error", "linkerd_app", slog.LevelInfo},
		{"warn,linkerd=info,hickory=error", "hickory_dns", slog.LevelError},
		{"warn,linkerd=info,hickory=error", "h2", slog.LevelWarn},
		{"linkerd=info", "h2", off},
		{"DEBUG", "x", slog.LevelDebug},
		{"linkerd", "linkerd_app", logs.LevelTrace},
		{"linkerd_app=off,linkerd=trace", "linkerd_app::admin", off},
		{"info,info,error", "x", slog.LevelError},
		{"off", "x", off},
		{" warn , a::b=debug ,", "a::b::c", slog.LevelDebug},
		{"warn,linkerd=info,[{headers}]=off,[{request}]=off", "linkerd_app", slog.LevelInfo},
		{"warn,a[b{c=1,d}]=trace", "a", slog.LevelWarn},
		{"3", "x", slog.LevelInfo},
	} {
		f, err := logs.ParseFilter(tt.filter)
		require.NoError(t, err, tt.filter)
		require.Equal(t, tt.want, f.Level(tt.target), "%s of %s", tt.filter, tt.target)
		require.Equal(t, tt.filter, f.String())
	}
	for _, bad := range []string{"", ",", "a=b", "=info", "a b=info", "a=", "[{headers}]=off", "a[b=info", "a[b]info", "a[b]=loud", "a\n=info"} {
		_, err := logs.ParseFilter(bad)
		require.Error(t, err, bad)
	}
	require.Equal(t, "off", logs.Filter{}.String())
	require.Equal(t, off, logs.Filter{}.Level("x"))
}

func FuzzFilter(f *testing.F) {
	for _, s := range []string{"warn,linkerd=info", "a=b=c", "[{headers}]=off,info", "[[", "}{,]=,a", "off", "\x00"} {
		f.Add(s, "linkerd")
	}
	f.Fuzz(func(t *testing.T, s, target string) {
		filter, err := logs.ParseFilter(s)
		if err != nil {
			return
		}
		again, err := logs.ParseFilter(filter.String())
		if err != nil || again.Level(target) != filter.Level(target) {
			t.Fatalf("%q is read again as %v, %v", s, again, err)
		}
		if strings.TrimSpace(s) == "" {
			t.Fatalf("%q has no level", s)
		}
	})
}
