package layer_test

import (
	"fmt"

	"github.com/gotower/gotower/layer"
)

func ExampleBudget() {
	// The budget allows retries for a fifth of the requests of the last ten seconds, and
	// one per second.
	budget := layer.NewBudget(0, 0.2, 1)
	for range 50 {
		budget.Deposit() // once for each request
	}
	sent := 0
	for budget.Withdraw() { // once for each retry or hedge
		sent++
	}
	fmt.Println(sent, "more,", budget.Balance(), "left")
	// Output: 20 more, 0 left
}
