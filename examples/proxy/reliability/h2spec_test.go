package reliability

import (
	"testing"

	"github.com/gotower/gotower/examples/internal/h2spectest"
)

func TestH2Spec(t *testing.T) {
	tn := newTestProxy(t)
	h2spectest.Run(t, map[string]h2spectest.Server{"in clear": {Addr: tn.addr}, "by TLS": {Addr: tn.tls, TLS: true}})
}
