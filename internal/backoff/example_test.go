package backoff_test

import (
	"fmt"
	"time"

	"github.com/gotower/gotower/internal/backoff"
)

func ExampleBackoff_Delay() {
	b := backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}
	for n := range 6 {
		fmt.Println(b.Delay(n))
	}
	// Output:
	// 100ms
	// 200ms
	// 400ms
	// 800ms
	// 1.6s
	// 2s
}
