package notify_test

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/gotower/gotower/internal/notify"
)

func ExampleBroadcast() {
	var free atomic.Int64
	var freed notify.Broadcast

	go func() {
		free.Store(1) // the change first
		freed.Wake()
	}()
	err := freed.Wait(context.Background(), func() bool { return free.Load() > 0 })
	fmt.Println(free.Load(), err)
	// Output: 1 <nil>
}
