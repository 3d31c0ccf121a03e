// Package emojivoto is a small application to watch: people vote for emoji,
// and one of the emoji always fails.
//
//	Bot ──HTTP──→ web ──gRPC──→ emojivoto.v1.EmojiService   ListAll, FindByShortcode
//	               └────gRPC──→ emojivoto.v1.VotingService  VoteRocket, VoteTaco, …, Results
//
// It is written after the application that Linkerd's walk-through uses. A vote
// for the doughnut reaches VotingService/VoteDoughnut, which answers with the
// gRPC status Unknown; the web front turns that into HTTP status 500. Everything
// else works. The exercise is to find that out from the traffic.
//
// A service can have several replicas, each an [EmojiServer] or [VotingServer]
// with a latency of its own; the replicas of the voting service share one
// [Tally]. Nothing here has a goroutine of its own but [Bot.Run], and that ends
// with its context.
//
// The messages are protobuf's well-known types, so that no code is generated:
//
//	ListAll(Empty) ListValue                    of structs {shortcode, unicode}
//	FindByShortcode(StringValue) StringValue    the unicode; NotFound
//	Vote<Emoji>(Empty) Empty
//	Results(Empty) ListValue                    of structs {shortcode, votes}
package emojivoto
