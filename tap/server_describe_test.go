package tap

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

func TestDescribeOverGRPC(t *testing.T) {
	tree := layer.Node{
		Name: "balance", State: layer.State{{Key: "target", Value: "web"}, {Key: "wait", Value: 3 * time.Millisecond}},
		Children: []layer.Node{{Name: "endpoint", Next: &layer.Node{Name: "tap", Next: &layer.Node{Name: "leaf\xff"}}}},
		Next:     &layer.Node{Name: "then"},
	}
	p := listen(t, NewServer(nil, WithDescribe(func() layer.Node { return tree })), nil)
	rsp, err := tappb.NewTapClient(p.conn).Describe(t.Context(), &tappb.DescribeRequest{})
	require.NoError(t, err)
	got := nodesOf(rsp.GetNodes())
	require.Equal(t, []layer.Node{
		{
			Name: "balance", State: layer.State{{Key: "target", Value: "web"}, {Key: "wait", Value: "3ms"}},
			Children: []layer.Node{{Name: "endpoint", Children: []layer.Node{{Name: "tap", Children: []layer.Node{{Name: "leaf\uFFFD"}}}}}},
		},
		{Name: "then"},
	}, got, "what is wrapped comes next at the top, and else as the last child")
	require.NotNil(t, tree.Next, "the tree is not changed")
}

// A panic of the function is the response, and does not end the process.
func TestDescribePanic(t *testing.T) {
	p := listen(t, NewServer(nil, WithDescribe(func() layer.Node { panic("oh\xff") })), nil)
	for range 2 {
		rsp, err := tappb.NewTapClient(p.conn).Describe(t.Context(), &tappb.DescribeRequest{})
		require.NoError(t, err)
		require.Equal(t, []layer.Node{
			{Name: "describe", State: layer.State{{Key: "error", Value: "panic at server_describe_test.go:37: oh\uFFFD"}}},
		}, nodesOf(rsp.GetNodes()))
	}
}

func TestDescribeWithoutFunction(t *testing.T) {
	p := listen(t, NewServer(nil), nil)
	_, err := tappb.NewTapClient(p.conn).Describe(t.Context(), &tappb.DescribeRequest{})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.Equal(t, "tap: the process has no tap.WithDescribe", status.Convert(err).Message())
}
