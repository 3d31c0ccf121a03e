package layer_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
)

func ExampleFaultInjection() {
	svc := layer.FaultInjection[string, string](layer.FaultPolicy[string]{
		Match:    func(name string) bool { return name == "bob" },
		Fraction: 1,
		Err:      layer.ErrInjected,
		TTL:      10 * time.Minute,
	})(greet)

	for _, name := range []string{"ann", "bob"} {
		fmt.Println(svc.Call(context.Background(), name))
	}
	// Output:
	// hello ann <nil>
	//  fault: injected fault
}
