package sidecar_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/gotower/gotower/examples/internal/rowtest"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// With its access log and metrics, the inbound side forwards all rows unchanged.
func TestRowsWithAccessLog(t *testing.T) {
	rowtest.Run(t, func(t *testing.T, one, two string) rowtest.Proxy {
		log := new(lines)
		in := func(addr string) string {
			tn := newTestProxy(t, newScript(t).addr, func(c *sidecar.Config) {
				c.Settings.Inbound.Origin, c.Settings.Log.Access = fixed(addr), settings.AccessJSON
			})
			tn.LogTo(log)
			return tn.Inbound
		}
		return rowtest.Proxy{HTTP1: in(one), HTTP2: in(two), Connect: true, Log: log.String}
	})
}

// lines is a text that goroutines may write concurrently.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
