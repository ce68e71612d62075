// GETs a URL twenty times on kept connections and prints the bodies' lengths: client.js URL.
const http = require('http');
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
let left = 20, total = 0;
for (let i = 0; i < 20; i++) {
  http.get(process.argv[2], { agent }, (response) => {
    response.on('data', (data) => { total += data.length; });
    response.on('end', () => {
      if (--left === 0) {
        console.log(total);
        agent.destroy();
      }
    });
  }).on('error', (error) => { console.error(error); process.exit(1); });
}
