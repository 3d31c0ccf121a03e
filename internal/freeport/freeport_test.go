package freeport_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/freeport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAddr(t *testing.T) {
	addr := freeport.Addr(t)
	_, err := net.Dial("tcp", addr)
	require.Error(t, err)
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
