package tap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/tap"
)

func TestReset(t *testing.T) {
	for code, want := range map[uint32]string{0: "NO_ERROR", 7: "REFUSED_STREAM", 13: "HTTP_1_1_REQUIRED", 14: "14", 1<<32 - 1: "4294967295"} {
		require.Equal(t, want, (&tap.ResponseEnd{ResetCode: &code}).Reset())
	}
	require.Empty(t, (&tap.ResponseEnd{}).Reset())
}
