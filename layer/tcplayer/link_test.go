package tcplayer

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who waits in Ready may find out that the address is down just before it comes
// up again. It is not tried then: it is a connection that says nothing.
func TestALinkThatIsUpIsNotTried(t *testing.T) {
	var l link
	require.True(t, l.report(false, io.EOF))
	trial, _ := l.claim()
	require.True(t, trial)
	require.True(t, l.report(true, nil))
	trial, wait := l.claim()
	require.False(t, trial)
	require.Zero(t, wait)
}
