package layer_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gotower/gotower/layer"
)

// span is the record that a tracer keeps of one operation.
type span struct {
	name     string
	outcome  string
	children []*span
}

func (s *span) Head(string)                  {}
func (s *span) End(c layer.Class, err error) { s.outcome = c.String() }

func (s *span) print(depth int) {
	fmt.Printf("%s%s: %s\n", strings.Repeat("  ", depth), s.name, s.outcome)
	for _, child := range s.children {
		child.print(depth + 1)
	}
}

type currentSpan struct{}

// spans starts spans with a name; each is a child of the one in its context.
func spans(name string) func(context.Context, string) (context.Context, layer.Span[string]) {
	return func(ctx context.Context, _ string) (context.Context, layer.Span[string]) {
		s := &span{name: name}
		if parent, ok := ctx.Value(currentSpan{}).(*span); ok {
			parent.children = append(parent.children, s)
		}
		return context.WithValue(ctx, currentSpan{}, s), s
	}
}

// The context carries the span. Therefore the queue between the two layers does not affect
// it.
func ExampleTrace() {
	first := make(chan struct{})
	slow := layer.Func[string, string](func(ctx context.Context, name string) (string, error) {
		if name == "ann" {
			close(first)
			time.Sleep(10 * time.Millisecond)
		}
		return greet(ctx, name)
	})
	svc := layer.NewStack[string, string]().
		With("trace", layer.Trace(spans("request"))).
		Queue(10, time.Minute).
		Limit(1).
		With("trace", layer.Trace(spans("endpoint"))).
		Service(slow)

	root := &span{name: "page", outcome: "success"}
	ctx := context.WithValue(context.Background(), currentSpan{}, root)
	go svc.Call(context.Background(), "ann") // takes the only slot
	<-first
	fmt.Println(svc.Call(ctx, "bob")) // waits for it
	root.print(0)
	// Output:
	// hello bob <nil>
	// page: success
	//   request: success
	//     endpoint: success
}
