package layer_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
)

func ExampleDrain() {
	d := layer.NewDrainer()
	busy := make(chan struct{})
	finish := make(chan struct{})
	svc := layer.Drain[string, string](d)(layer.Func[string, string](func(_ context.Context, name string) (string, error) {
		close(busy)
		<-finish
		return "hello " + name, nil
	}))

	answered := make(chan string)
	go func() {
		greeting, _ := svc.Call(context.Background(), "ann")
		answered <- greeting
	}()
	<-busy

	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	err := d.Drain(ctx)
	fmt.Println(d.InFlight(), "left:", errors.Is(err, context.DeadlineExceeded))

	_, err = svc.Call(context.Background(), "bob")
	fmt.Println(err)

	close(finish)
	fmt.Println(<-answered)
	fmt.Println(d.Drain(context.Background()))
	// Output:
	// 1 left: true
	// drain: closed: no new requests while it drains
	// hello ann
	// <nil>
}
