package tap_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

func ExampleRegistry_Top() {
	reg := tap.NewRegistry()
	service := tap.Layer(reg, httplayer.HTTP{}, tap.Outbound,
		tap.WithDestination(netip.MustParseAddrPort("10.1.2.3:8080"), map[string]string{"pod": "web-1"}),
	)(layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
		status := http.StatusOK
		if req.URL.Path == "/broken" {
			status = http.StatusBadGateway
		}
		return &http.Response{StatusCode: status, Body: http.NoBody}, nil
	}))

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			for _, path := range []string{"/", "/", "/broken"} {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://web"+path, http.NoBody)
				if rsp, err := service.Call(ctx, req); err == nil {
					_ = rsp.Body.Close()
				}
			}
			<-time.After(time.Millisecond)
		}
	}()

	for top, err := range reg.Top(ctx, &tappb.TopRequest{Every: durationpb.New(100 * time.Millisecond)}) {
		if err != nil {
			fmt.Println(err)
			break
		}
		uncounted := func(row *tappb.Row) bool { return row.GetCount() == 0 }
		if len(top.GetRows()) < 2 || slices.ContainsFunc(top.GetRows(), uncounted) {
			continue // the requests have only begun
		}
		for _, row := range top.GetRows() {
			success := 100 * row.GetSuccesses() / row.GetCount()
			fmt.Println(row.GetDestination(), row.GetMethod(), row.GetPath(), fmt.Sprint(success, "%"), row.GetP99().AsDuration() < time.Hour)
		}
		break
	}
	cancel()
	<-done
	// Output:
	// web-1 GET / 100% true
	// web-1 GET /broken 0% true
}
