package emojivoto_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/demo/emojivoto"
)

// serve runs one replica on loopback and returns a connection to it.
func serve(register func(grpc.ServiceRegistrar)) (conn *grpc.ClientConn, stop func()) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	register(server)
	ended := make(chan error)
	go func() { ended <- server.Serve(lis) }()
	conn, err = grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	return conn, func() {
		conn.Close()
		server.Stop()
		<-ended
	}
}

// The application without anything between its services.
func Example() {
	tally := emojivoto.NewTally()
	emoji, stopEmoji := serve(emojivoto.NewEmojiServer(nil).Register)
	defer stopEmoji()
	voting, stopVoting := serve(emojivoto.NewVotingServer(tally, nil).Register)
	defer stopVoting()
	web := httptest.NewServer(emojivoto.NewWeb(emoji, voting))
	defer web.Close()

	for _, path := range []string{"vote?choice=:rocket:", "vote?choice=:doughnut:", "leaderboard"} {
		rsp, err := web.Client().Get(web.URL + "/api/" + path)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(rsp.Body)
		rsp.Body.Close()
		fmt.Print(rsp.StatusCode, " ", string(body))
	}
	fmt.Println(tally.Results())
	// Output:
	// 200 {"shortcode":":rocket:","unicode":"🚀"}
	// 500 {"code":"Unknown","error":"VoteDoughnut: ERROR"}
	// 200 [{"shortcode":":rocket:","unicode":"🚀","votes":1}]
	// [{:rocket: 1}]
}

func ExampleBot() {
	emoji, stopEmoji := serve(emojivoto.NewEmojiServer(nil).Register)
	defer stopEmoji()
	voting, stopVoting := serve(emojivoto.NewVotingServer(emojivoto.NewTally(), nil).Register)
	defer stopVoting()
	web := httptest.NewServer(emojivoto.NewWeb(emoji, voting))
	defer web.Close()

	bot := emojivoto.NewBot(web.Client(), web.URL, 500, 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	go func() { // until it has voted for the doughnut as well
		for ctx.Err() == nil && bot.Counts().Doughnuts == 0 {
			<-time.After(10 * time.Millisecond)
		}
		cancel()
	}()
	bot.Run(ctx)

	did := bot.Counts()
	fmt.Println("voted:", did.Votes > 0, "every doughnut failed, and nothing else:", did.Failed == did.Doughnuts)
	// Output:
	// voted: true every doughnut failed, and nothing else: true
}

func ExampleVoteMethod() {
	fmt.Println(emojivoto.VoteMethod(":hot_pepper:"))
	// Output:
	// VoteHotPepper
}
