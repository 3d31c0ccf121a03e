package outbound

import (
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/layer"
)

// Dial returns a connection to the destination controller at addr, in clear.
// It connects when it is first used. While the controller is away, attempts
// are b apart: gRPC's own default would go up to two minutes.
func Dial(addr string, b layer.Backoff) (*grpc.ClientConn, error) {
	b = b.OrDefault()
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: b.Min, Multiplier: 2, Jitter: b.Jitter, MaxDelay: b.Max},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("destination controller %s: %w", addr, err)
	}
	return conn, nil
}
