package layer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/wake"
)

// KillSwitch ends what any number of [FaultInjection] layers inject, at once and for
// good; to inject again, make new layers. Requests that are being delayed go on
// undisturbed. The zero KillSwitch is ready to use; it must not be copied. It
// is safe for concurrent use.
type KillSwitch struct {
	thrown atomic.Bool
	ended  wake.Broadcast
}

// Stop ends it. Throwing twice is throwing once.
func (k *KillSwitch) Stop() {
	k.thrown.Store(true)
	k.ended.Wake()
}

// Stopped reports whether Throw was called.
func (k *KillSwitch) Stopped() bool { return k.thrown.Load() }

var errChaosSlept = errors.New("the injected delay is over")

// sleep waits for d, or until k is thrown; it returns the cause of ctx if that
// ends before.
func (k *KillSwitch) sleep(ctx context.Context, d time.Duration) error {
	until, cancel := context.WithTimeoutCause(ctx, d, errChaosSlept)
	defer cancel()
	if err := k.ended.Wait(until, k.Stopped); !errors.Is(err, errChaosSlept) {
		return err
	}
	return nil
}
