// Command load asks a model server as fast as it answers, or at the times of a Poisson process.
//
// Vegeta sends; this program decides when, and writes three little-endian float64 a request to
// standard output: when it was due in seconds from the start, seconds from then to the end of the
// answer, and the status (0: no answer).
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

// mostInFlight bounds the connections, as a proxy in front of a server would: a request that finds
// none is sent late, and the wait counts. Without a bound Vegeta opens one for each request that no
// idle sender takes at once, and measures how a server copes with thousands of new connections.
const mostInFlight = 256

// headers are given as "Name: value", one an option.
type headers http.Header

func (h headers) String() string { return "" }

func (h headers) Set(text string) error {
	name, value, found := strings.Cut(text, ": ")
	if !found {
		return fmt.Errorf("%q is not written as \"Name: value\"", text)
	}
	http.Header(h).Add(name, value)
	return nil
}

// poisson lets requests come independently of each other and of the answers.
type poisson struct {
	mean float64
	due  []time.Duration // of each request, as they were drawn
	last time.Duration
}

// Pace draws the next time; a late sender sends at once, and the wait counts as latency.
func (p *poisson) Pace(elapsed time.Duration, _ uint64) (time.Duration, bool) {
	p.last += time.Duration(rand.ExpFloat64() / p.mean * float64(time.Second))
	p.due = append(p.due, p.last)
	return p.last - elapsed, false
}

func (p *poisson) Rate(time.Duration) float64 { return p.mean }

func main() {
	header := http.Header{}
	url := flag.String("url", "", "where requests go")
	clients := flag.Int("clients", 0, "closed loop: each sends when its last was answered")
	rate := flag.Float64("rate", 0, "open loop: mean requests a second")
	seconds := flag.Float64("seconds", 1, "no request is sent later")
	timeout := flag.Duration("timeout", 30*time.Second, "of one request")
	flag.Var(headers(header), "header", "\"Name: value\" of every request; may be given again")
	flag.Parse()
	if (*clients > 0) == (*rate > 0) || flag.NArg() == 0 {
		log.Fatal("write either -clients or -rate, and the files with the requests' bodies")
	}

	options := []func(*vegeta.Attacker){
		vegeta.Timeout(*timeout),
		vegeta.MaxBody(0), // read, but not kept
		vegeta.HTTP2(false),
		vegeta.Connections(mostInFlight), // none is closed for being idle
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
		options = append(options, vegeta.MaxWorkers(mostInFlight))
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

// targeter sends the files in turn.
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
			code = 0 // its body broke off
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
