package emojivoto

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// VotingServer is one replica of the voting service. There is a method for each emoji, because
// tap then shows a separate path for each. It is safe for concurrent use.
type VotingServer struct {
	replica

	methods []grpc.MethodDesc
	tally   *Tally
}

// NewVotingServer returns a replica of the voting service that counts votes in tally. For
// each request it calls delay, and waits for the returned duration. A nil delay means no
// wait. delay must be safe for concurrent use.
func NewVotingServer(tally *Tally, delay func() time.Duration) *VotingServer {
	s := &VotingServer{replica: newReplica(delay), tally: tally}
	s.methods = []grpc.MethodDesc{unary(&s.replica, VotingService, "Results", newEmpty, s.results)}
	for _, e := range Catalogue() {
		// Each method votes for one emoji.
		s.methods = append(s.methods, unary(&s.replica, VotingService, VoteMethod(e.Shortcode), newEmpty, s.vote(e.Shortcode)))
	}
	return s
}

// Register registers the voting service with a gRPC server.
func (s *VotingServer) Register(r grpc.ServiceRegistrar) { register(r, VotingService, s.methods) }

// vote returns the method that votes for the emoji.
func (s *VotingServer) vote(shortcode string) func(context.Context, *emptypb.Empty) (*emptypb.Empty, error) {
	return func(context.Context, *emptypb.Empty) (*emptypb.Empty, error) {
		// The doughnut fails on purpose, so that tap has something to show.
		if shortcode == Doughnut {
			return nil, status.Error(codes.Unknown, "ERROR")
		}
		s.tally.Vote(shortcode)
		return newEmpty(), nil
	}
}

// results is the method Results, which returns the emoji with their votes.
func (s *VotingServer) results(context.Context, *emptypb.Empty) (*structpb.ListValue, error) {
	list := &structpb.ListValue{}
	for _, r := range s.tally.Results() {
		list.Values = append(list.Values, object(map[string]*structpb.Value{
			"shortcode": structpb.NewStringValue(r.Shortcode),
			"votes":     structpb.NewNumberValue(float64(r.Votes)),
		}))
	}
	return list, nil
}
