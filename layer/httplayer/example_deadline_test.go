package httplayer_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

func ExampleGRPCTimeout() {
	svc := layer.NewStack[*http.Request, *http.Response]().
		DeadlineFromRequest(httplayer.GRPCTimeout).
		Service(layer.Func[*http.Request, *http.Response](func(ctx context.Context, _ *http.Request) (*http.Response, error) {
			at, _ := ctx.Deadline()
			fmt.Println(time.Until(at).Round(time.Second), "left")
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}))
	req, _ := http.NewRequest(http.MethodPost, "http://web.default/", http.NoBody)
	req.Header.Set("Grpc-Timeout", "5S")
	rsp, err := svc.Call(context.Background(), req)
	fmt.Println(rsp.StatusCode, err)

	req.Header.Set("Grpc-Timeout", "0n")
	_, err = svc.Call(context.Background(), req)
	fmt.Println(err)
	fmt.Println(httplayer.StatusFromError(err))
	// Output:
	// 5s left
	// 200 <nil>
	// deadline: out of time: the caller's time was over when the request came: context deadline exceeded
	// 504 4
}
