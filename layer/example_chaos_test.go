package layer_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
)

func ExampleFaultInjection() {
	var kill layer.KillSwitch
	svc := layer.FaultInjection[string, string](layer.FaultPolicy[string]{
		Match:    func(name string) bool { return name == "bob" },
		Fraction: 1,
		Err:      layer.ErrInjected,
		TTL:      10 * time.Minute,
		Kill:     &kill,
	})(greet)

	for _, name := range []string{"ann", "bob"} {
		fmt.Println(svc.Call(context.Background(), name))
	}
	kill.Stop()
	fmt.Println(svc.Call(context.Background(), "bob"))
	fmt.Print(layer.Describe(svc))
	// Output:
	// hello ann <nil>
	//  chaos: injected fault
	// hello bob <nil>
	// chaos      share=1 ends_in=0s injected=1 delayed=0 failed=1
	// layer.Func
}
