package grpclayer

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A unary call on the loopback through a ControlPlaneConn, and through gRPC alone.
func BenchmarkControl(b *testing.B) {
	p := servePlane(b, "127.0.0.1:0", nil)
	plain, err := grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	defer plain.Close()
	for name, cc := range map[string]grpc.ClientConnInterface{"grpc": plain, "control": control(b, ControlPlaneConfig{Addr: p.addr})} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := call(b.Context(), cc); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
