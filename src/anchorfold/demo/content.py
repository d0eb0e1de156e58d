"""Content of the sample documents of a fictitious ferry company, and queries with one expected page each."""

from __future__ import annotations

Table = tuple[tuple[str, ...], ...]

REPORT: tuple[tuple[str, tuple[str, ...], Table], ...] = (
    ("Halden Ferries annual report 2024",
     ("Eleven ships, six harbours and 1,940 employees carried passengers, cars and freight across the sound.",
      "This report describes the year ended 31 December 2024. Amounts are in million crowns unless stated."), ()),
    ("Letter from the chair",
     ("It was the year of the electric crossing. In May the first battery ship left Moss, and by autumn every second "
      "departure on that route was silent.", "Demand from commuters returned, while tourists stayed longer ashore. We "
      "thank our crews for a winter in which not one departure was cancelled for want of staff.",
      "Ingrid Solberg, chair of the board"), ()),
    ("Net revenue by region",
     ("Revenue rose by seven per cent. The northern routes grew fastest after the new timetable.",),
     (("Region", "2023", "2024", "Change"), ("Northern routes", "412", "489", "+18.7 %"),
      ("Inner sound", "655", "671", "+2.4 %"), ("Southern routes", "388", "391", "+0.8 %"),
      ("Freight terminals", "204", "224", "+9.8 %"), ("Total", "1,659", "1,775", "+7.0 %"))),
    ("Operating costs",
     ("Fuel fell as batteries replaced diesel; wages followed the collective agreement.",),
     (("Item", "2023", "2024"), ("Wages and pensions", "602", "640"), ("Marine diesel", "318", "241"),
      ("Electricity", "22", "61"), ("Harbour dues", "97", "99"), ("Maintenance", "141", "150"))),
    ("The fleet",
     ("The oldest ship, Skarven, was sold for recycling in March.",),
     (("Ship", "Built", "Cars", "Drive"), ("Alken", "2023", "212", "battery"), ("Teisten", "2019", "180", "hybrid"),
      ("Lunden", "2011", "164", "diesel"), ("Havsulen", "2006", "150", "diesel"), ("Krykkja", "1998", "96", "diesel"))),
    ("Passengers month by month", ("July remains the peak: 611 thousand travellers, nine in ten on foot.",), ()),
    ("Balance sheet",
     ("Equity reached 41 per cent of total assets at the end of the year.",),
     (("Assets", "2024", "Liabilities", "2024"), ("Ships", "2,310", "Equity", "1,262"),
      ("Buildings", "340", "Bonds", "1,100"), ("Receivables", "188", "Payables", "412"),
      ("Cash", "240", "Provisions", "304"), ("Total", "3,078", "Total", "3,078"))),
    ("Safety and incidents",
     ("Two injuries kept crew from work, against seven the year before. One grounding, off Kragero in fog on 9 "
      "November, caused no spill. Every crew member trains evacuation four times a year.",), ()),
    ("Emissions",
     ("Carbon dioxide fell from 148,000 to 112,000 tonnes. Nitrogen oxides fell by a third after catalysts were fitted "
      "to Lunden and Havsulen.",), ()),
    ("Risk management",
     ("A rise of the interest rate by one point costs 11 million a year. Half of next winter's electricity is hedged. "
      "Ransomware is rated our greatest operational risk; backups are restored on trial each quarter.",), ()),
    ("Board and management",
     ("The board met nine times.",),
     (("Name", "Role", "Since"), ("Ingrid Solberg", "Chair", "2018"), ("Per Aasen", "Vice chair", "2020"),
      ("Leila Haddad", "Audit committee", "2021"), ("Tomasz Wilk", "Employee representative", "2022"))),
    ("Dividend and shareholders",
     ("The board proposes a dividend of 3.25 crowns a share, payable on 14 May. The municipality of Halden owns 34 per "
      "cent, pension funds 29 per cent.",), ()),
    ("Outlook for 2025",
     ("Two more battery ships enter service in June and October. The contract for the Larvik route ends, and we shall "
      "bid again. Ticket prices rise by 2.9 per cent in February.",), ()),
    ("Auditor's statement",
     ("In our opinion the accounts give a true and fair view. Oslo, 3 March 2025. Brekke and Partners, state "
      "authorised public accountants.",), ()),
)  # fmt: skip

SLIDES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Onboard Wi-Fi: project kick-off", ("Start in January", "Budget 14 million", "Sponsor: Leila Haddad")),
    (
        "Why passengers complain",
        ("Connection drops near Jeloya", "Login page needs three clicks", "No power sockets aft"),
    ),
    ("Three vendors, one choice", ("Marlink: satellite only", "Telenor: coastal 5G masts", "Icomera: bonded modems")),
    ("Timeline", ("Pilot on Alken in April", "Decision gate in June", "Whole fleet by December")),
    ("Cybersecurity baseline", ("Guest network kept apart from bridge systems", "Penetration test each spring")),
    ("Cost breakdown", ("Antennas 6.2 million", "Cabling 3.1 million", "Licences 2.4 million", "Reserve 2.3 million")),
    ("Pilot results", ("Median speed 38 megabit per second", "Satisfaction from 2.9 to 4.4 of 5")),
    ("Lessons from the pilot", ("Mount antennas away from the funnel", "Train stewards before launch")),
    ("Open questions", ("Who pays for roaming in Stromstad?", "Quiet zones without Wi-Fi?")),
    ("Next steps", ("Sign frame agreement", "Order antennas with twelve weeks lead time", "Brief the unions")),
)

FORMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Travel expense claim", ("Employee number", "Cost centre", "Mileage (km)", "Overnight allowance",
                              "Receipts attached", "Signature of supervisor")),
    ("Request for parental leave", ("Expected date of birth", "First day of leave", "Share of salary wanted",
                                    "Substitute arranged", "Signature")),
    ("Lost property report", ("Ship and departure", "Description of item", "Colour and brand", "Telephone", "E-mail")),
    ("Bicycle lease application", ("Frame size", "Model wanted", "Monthly deduction", "Helmet included", "Shop")),
    ("Supplier registration", ("Company name", "VAT number", "Bank account (IBAN)", "Contact person",
                               "Anti-corruption declaration")),
)  # fmt: skip

FACTS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("A battery ship in numbers", (("4.6 MWh", "battery capacity"), ("11 min", "to charge"), ("68 %", "less noise"),
                                   ("212", "cars on deck"))),
    ("Our seabirds", (("23", "nest boxes on quays"), ("140", "puffins ringed"), ("0", "oil spills"), ("5", "species"))),
    ("What you eat on board", (("31 t", "of cinnamon buns"), ("212,000", "cups of coffee"), ("9 %", "vegan meals"),
                               ("18", "local farms"))),
    ("Rescue at sea", (("14", "people rescued"), ("6 min", "to launch the boat"), ("52", "drills"), ("3", "medals"))),
)  # fmt: skip

HANDBOOK: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Working hours and rest", ("Crew work fourteen days and rest fourteen. No watch lasts longer than six hours. "
     "Night work between 22 and 6 is paid with a supplement of 45 per cent.",)),
    ("Uniform and washing", ("The company pays for two uniforms a year and for their dry cleaning. Shoes with slip "
     "resistant soles are compulsory on car decks.",)),
    ("Sick leave", ("Call the crewing office before the watch begins. A doctor's certificate is needed from the fourth "
     "day. Full wages are paid for sixteen days, then the social insurance pays.",)),
    ("Whistleblowing", ("Report wrongdoing to the ombudsman, Astrid Moe, by telephone or through the sealed letterbox "
     "in the mess. Retaliation is forbidden.",)),
    ("Pets of passengers", ("Dogs travel on the open deck or in cabin corridor C. Cats stay in their carriers. Horses "
     "need a veterinary passport and a place booked by telephone.",)),
    ("Pension and insurance", ("The employer pays seven per cent of wages into the pension fund from the first day. "
     "Group life insurance covers every employee under seventy.",)),
)  # fmt: skip

SCANS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Notice to mariners", ("The lighthouse at Torungen is dark for repairs from 2 to 20 September. Keep one mile "
     "clear of the yellow buoys.",)),
    ("Delivery note 88214", ("Forty life jackets, children's size, received in good order from Hansen Marine Supplies. "
     "Missing: six whistles.",)),
    ("Minutes of the works council", ("The council agreed to lockers for cadets and to later breakfast on Sundays. The "
     "question of the smoking cabin was postponed.",)),
)  # fmt: skip

QUERIES: tuple[tuple[str, str, int], ...] = (
    ("net revenue by region", "annual-report.pdf", 3),
    ("how much dividend per share?", "annual-report.pdf", 12),
    ("marine diesel and electricity costs", "annual-report.pdf", 4),
    ("grounding in fog off Kragero", "annual-report.pdf", 8),
    ("which ship was sold for recycling?", "annual-report.pdf", 5),
    ("carbon dioxide and nitrogen oxides", "annual-report.pdf", 9),
    ("vendors for satellite and coastal 5G", "wifi-slides.pdf", 3),
    ("satisfaction after the pilot, median speed", "wifi-slides.pdf", 7),
    ("parental leave, expected date of birth", "forms.pdf", 2),
    ("IBAN and VAT number of suppliers", "forms.pdf", 5),
    ("battery capacity of the ship", "infographics.pdf", 1),
    ("cups of coffee and cinnamon buns", "infographics.pdf", 3),
    ("supplement for night work", "handbook.pdf", 1),
    ("can I bring my dog or horse?", "handbook.pdf", 5),
    ("lighthouse repairs in September", "scans.tiff", 1),
    ("children's life jackets delivery", "scans.tiff", 2),
)

# The first matches text and image; the second is on a scan without a text layer.
HYBRID_QUERIES = ("whom do I tell about wrongdoing: Astrid Moe?", "children's life jackets delivery")
