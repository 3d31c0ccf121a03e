package sidecar_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// A proxy that cannot find the original destination of inbound connections logs that on startup.
func TestInboundWithoutOriginWarning(t *testing.T) {
	redirected := settings.Origin{Kind: settings.Redirected}
	for name, tt := range map[string]struct {
		origin settings.Origin
		listen bool
		warned bool
	}{
		"redirected":      {redirected, true, redirected.Check(t.Context()) != nil},
		"fixed":           {fixed("127.0.0.1:80"), true, false},
		"proxy protocol":  {settings.Origin{Kind: settings.ProxyProtocol}, true, false},
		"without inbound": {redirected, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			c := sidecar.Config{Settings: settingsFor(t, newScript(t).addr)}
			c.Settings.Inbound.Origin = tt.origin
			if !tt.listen {
				c.Settings.Inbound.Listen = netip.AddrPort{}
			}
			p, err := sidecar.New(c, slog.New(slog.NewTextHandler(&log, nil)))
			require.NoError(t, err)
			ended, end := context.WithCancel(t.Context())
			end()
			require.NoError(t, p.Run(ended))
			require.Equal(t, tt.warned, bytes.Contains(log.Bytes(), []byte("no original destination")), log.String())
		})
	}
}
