package static

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/resolve"
)

func TestEndpointsWithoutAddress(t *testing.T) {
	bad := append(endpoints(t, "10.0.0.1:80"), resolve.Endpoint{})
	const want = `static: target "web": endpoint 2 of 2 has no valid address`
	assert.PanicsWithValue(t, want, func() { New(map[string][]resolve.Endpoint{"web": bad}) })
	assert.PanicsWithValue(t, want, func() { New(nil).Set("web", bad...) })
}
