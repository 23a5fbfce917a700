// Command load sends requests to a model server in a closed loop or at the times of a Poisson process.
//
// Vegeta sends the requests; this program schedules them and writes three little-endian float64 values
// per request to standard output: its due time in seconds since the start, the seconds from that time to
// the end of the response, and the status (0: no response).
package main

import (
	"bufio"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// maxInFlight limits the number of connections, as a proxy in front of a server would: a request without
// a free connection is sent late, and the wait counts as latency. Without a limit, Vegeta would open a
// connection whenever no sender is idle, and measure how a server copes with thousands of them.
const maxInFlight = 256

// headers is a flag that may be repeated, with a value of the form "Name: value".
type headers http.Header

func (h headers) String() string { return "" }

func (h headers) Set(text string) error {
	name, value, found := strings.Cut(text, ": ")
	if !found {
		return fmt.Errorf("%q does not have the form \"Name: value\"", text)
	}
	http.Header(h).Add(name, value)
	return nil
}

// poisson is a pacer that draws the due times of the requests from a Poisson process.
type poisson struct {
	mean float64
	due  []time.Duration // due times of the requests, in the order in which they were drawn
	last time.Duration
}

// Pace draws the time of the next request. If that time has passed, the request is sent immediately,
// and the delay counts as latency.
func (p *poisson) Pace(elapsed time.Duration, _ uint64) (time.Duration, bool) {
	p.last += time.Duration(rand.ExpFloat64() / p.mean * float64(time.Second))
	p.due = append(p.due, p.last)
	return p.last - elapsed, false
}

func (p *poisson) Rate(time.Duration) float64 { return p.mean }

func main() {
	header := http.Header{}
	url := flag.String("url", "", "URL of the requests")
	clients := flag.Int("clients", 0, "closed loop: number of clients, each of which waits for its previous response")
	rate := flag.Float64("rate", 0, "open loop: mean number of requests per second")
	seconds := flag.Float64("seconds", 1, "duration of the load")
	timeout := flag.Duration("timeout", 30*time.Second, "timeout of a request")
	flag.Var(headers(header), "header", "\"Name: value\" of every request; may be repeated")
	flag.Parse()
	if (*clients > 0) == (*rate > 0) || flag.NArg() == 0 {
		log.Fatal("specify either -clients or -rate, and the files that contain the request bodies")
	}

	options := []func(*vegeta.Attacker){
		vegeta.Timeout(*timeout),
		vegeta.MaxBody(0), // read the body, but do not store it
		vegeta.HTTP2(false),
		vegeta.Connections(maxInFlight), // never close idle connections
	}
	var pacer vegeta.Pacer
	var schedule *poisson
	if *clients > 0 {
		pacer = vegeta.Rate{Freq: 0, Per: time.Second}
		count := uint64(*clients)
		options = append(options, vegeta.Workers(count), vegeta.MaxWorkers(count))
	} else {
		schedule = &poisson{mean: *rate}
		pacer = schedule
		options = append(options, vegeta.MaxWorkers(maxInFlight))
	}

	attacker := vegeta.NewAttacker(options...)
	duration := time.Duration(*seconds * float64(time.Second))
	began := time.Now()
	var results []*vegeta.Result
	for result := range attacker.Attack(targeter(*url, header, flag.Args()), pacer, duration, "") {
		results = append(results, result)
	}
	write(results, began, schedule)
}

// targeter returns a targeter that sends the contents of the files in rotation, as request bodies.
func targeter(url string, header http.Header, files []string) vegeta.Targeter {
	bodies := make([][]byte, len(files))
	for i, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			log.Fatal(err)
		}
		bodies[i] = body
	}
	var next atomic.Uint64
	return func(target *vegeta.Target) error {
		target.Method, target.URL, target.Header = http.MethodPost, url, header
		target.Body = bodies[next.Add(1)%uint64(len(bodies))]
		return nil
	}
}

func write(results []*vegeta.Result, began time.Time, schedule *poisson) {
	out := bufio.NewWriter(os.Stdout)
	for _, result := range results {
		sent := result.Timestamp.Sub(began)
		due := sent
		if schedule != nil {
			due = schedule.due[result.Seq]
		}
		code := result.Code
		if result.Code == 200 && result.Error != "" {
			code = 0 // the body was truncated
		}
		record := []float64{due.Seconds(), (sent + result.Latency - due).Seconds(), float64(code)}
		if err := binary.Write(out, binary.LittleEndian, record); err != nil {
			log.Fatal(err)
		}
	}
	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
}
