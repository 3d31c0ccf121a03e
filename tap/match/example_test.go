package match_test

import (
	"fmt"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"

	"github.com/gotower/gotower/tap/match"
)

// All calls of one gRPC method to one deployment, with their headers.
func Example() {
	request := &pb.ObserveRequest{
		Limit: 100,
		Match: match.All(
			match.Method("POST"),
			match.Path("/emojivoto.v1.VotingService/VoteDoughnut"),
			match.DestinationLabel("deployment", "voting"),
		),
		Extract: match.Headers(),
	}
	fmt.Println(len(request.GetMatch().GetAll().GetMatches()), "conditions")
	// Output: 3 conditions
}
