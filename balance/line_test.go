package balance

import (
	"math/bits"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/discover"
)

// The fields of an endpoint that a request touches are one cache line.
func TestNodeSize(t *testing.T) {
	const line = 64
	if bits.UintSize < 64 {
		t.Skip("it is smaller where pointers are")
	}
	require.EqualValues(t, line, reflect.TypeFor[node[int, int]]().Size())
	require.EqualValues(t, line, reflect.TypeFor[node[string, []byte]]().Size())
	b := &Balancer[int, int]{group: groupOf()}
	for range 1000 {
		n := b.newNode(&discover.Endpoint[int, int]{Service: nothing{}})
		require.Zero(t, reflect.ValueOf(n).Pointer()%line)
	}
}
