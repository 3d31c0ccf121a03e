package linkerd_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles/linkerd"
)

func TestInvalidOptions(t *testing.T) {
	for want, f := range map[string]func(){
		"linkerd: WithNetworks: network 2 of 2 is not valid": func() { linkerd.WithNetworks(netip.MustParsePrefix("10.0.0.0/8"), netip.Prefix{}) },
		"linkerd: backoff: max 1s must be at least min 2s":   func() { linkerd.WithBackoff(layer.Backoff{Min: 2e9, Max: 1e9}) },
	} {
		assert.PanicsWithValue(t, want, f)
	}
}
