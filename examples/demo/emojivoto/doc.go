// Package emojivoto is a small application for demonstrations, in which clients vote for emoji.
// The votes for one emoji always fail.
//
//	Bot ──HTTP──→ web ──gRPC──→ emojivoto.v1.EmojiService   ListAll, FindByShortcode
//	               └────gRPC──→ emojivoto.v1.VotingService  VoteRocket, VoteTaco, …, Results
//
// It imitates the application of Linkerd's walk-through. A vote for the doughnut calls
// VotingService/VoteDoughnut, which returns the gRPC status Unknown. The web front maps this to
// HTTP status 500. All other requests succeed.
//
// A service can run several replicas, each an [EmojiServer] or [VotingServer] with its own
// latency. The voting service's replicas share one [Tally].
//
// The messages are protobuf's well-known types, so that no code must be generated:
//
//	ListAll(Empty) ListValue                    of structs {shortcode, unicode}
//	FindByShortcode(StringValue) StringValue    the unicode; NotFound
//	Vote<Emoji>(Empty) Empty
//	Results(Empty) ListValue                    of structs {shortcode, votes}
package emojivoto
