package settings_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
)

// Unset limits mean no limit, as in linkerd's proxy. Limits do not apply to a controller on this
// machine. Limits that are too short cause a warning.
func TestLimitsOfStreams(t *testing.T) {
	none := settings.StreamLimits{Initial: -1, Idle: -1, Lifetime: -1}
	for name, tt := range map[string]struct {
		at, initial, idle, lifetime string
		want                        settings.StreamLimits
		warnings                    []string
	}{
		"unset":           {at: "dst.linkerd:8086", want: none},
		"0":               {"dst.linkerd:8086", "0", "0s", "0ms", none, nil},
		"one":             {"dst.linkerd:8086", "", "5m", "", settings.StreamLimits{Initial: -1, Idle: 5 * time.Minute, Lifetime: -1}, nil},
		"all":             {"dst.linkerd:8086", "3s", "5m", "1h", settings.StreamLimits{Initial: 3 * time.Second, Idle: 5 * time.Minute, Lifetime: time.Hour}, nil},
		"of this machine": {"localhost.:8086", "3s", "5s", "1h", none, nil},
		"too short": {
			"dst.linkerd:8086", "3s", "5s", "9999ms",
			settings.StreamLimits{Initial: 3 * time.Second, Idle: 5 * time.Second, Lifetime: 9999 * time.Millisecond},
			[]string{
				"LINKERD2_PROXY_CONTROL_STREAM_IDLE_TIMEOUT is 5s: 10s is used instead",
				"LINKERD2_PROXY_CONTROL_STREAM_LIFETIME is 9.999s: 10s is used instead",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			vars := map[string]string{"DESTINATION_SVC_ADDR": tt.at}
			if name != "unset" {
				vars["CONTROL_STREAM_INITIAL_TIMEOUT"], vars["CONTROL_STREAM_IDLE_TIMEOUT"] = tt.initial, tt.idle
				vars["CONTROL_STREAM_LIFETIME"] = tt.lifetime
			}
			s, err := settings.Read(from(vars))
			require.NoError(t, err)
			require.Equal(t, tt.want, s.Control.Limits())
			require.Equal(t, tt.warnings, s.Warnings)
		})
	}
}
