package layer_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/layer"
)

func ExampleLazy() {
	attempts := 0
	svc := layer.Lazy(func() (layer.Service[string, string], error) {
		if attempts++; attempts == 1 {
			return nil, errors.New("no dictionary yet")
		}
		return greet, nil
	})
	for range 2 {
		fmt.Println(svc.Call(context.Background(), "ann"))
	}
	// Output:
	//  lazy: not ready: it could not be made: no dictionary yet
	// hello ann <nil>
}
